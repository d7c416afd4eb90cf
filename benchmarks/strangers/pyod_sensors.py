"""PyOD's AutoEncoder: finds the faulty ones among readings of many sensors that follow a few hidden causes."""

import sys
from pathlib import Path

import numpy as np
from pyod.models.auto_encoder import AutoEncoder
from pyod.utils.data import evaluate_print

PACKAGE = "pyod"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
random = np.random.default_rng(0)
sensors, causes = 200, 8
hidden, mixing = random.normal(size=(causes, 40)), random.normal(size=(40, sensors)) / 40**0.5


def readings(count):
    """Every tenth is faulty: a fifth of its sensors show what another moment would."""
    values = np.tanh(random.normal(size=(2, count, causes)) @ hidden / causes**0.5 * 1.5) @ mixing
    values, others = values + 0.1 * random.normal(size=values.shape)
    faulty = random.random(count) < 0.1
    swapped = faulty[:, None] & (random.random((count, sensors)) < 0.2)
    return np.where(swapped, others, values).astype(np.float32), faulty.astype(int)


(x_train, y_train), (x_test, y_test) = readings(12_800), readings(2000)
detector = AutoEncoder(
    contamination=0.1, epoch_num=15, batch_size=256, lr=1e-3, hidden_neuron_list=[512, 128], dropout_rate=0.1, verbose=2,
    random_state=0,
)  # fmt: skip
detector.fit(x_train)  # it cannot resume
detector.save(str(folder / "detector.pkl"))
evaluate_print("train", y_train, detector.decision_scores_)
evaluate_print("test", y_test, detector.decision_function(x_test))
