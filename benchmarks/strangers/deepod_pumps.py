"""DeepOD's TcnED: a convolutional autoencoder learns a pump's rhythm from eight sensors and tells where it is lost."""

import sys
from pathlib import Path

import joblib
import numpy as np
from deepod.metrics import auc_pr, auc_roc, point_adjustment
from deepod.models.time_series import TcnED

PACKAGE = "deepod"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
random, sensors = np.random.default_rng(0), 8
gains, delays = random.uniform(0.2, 0.4, size=(2, sensors)), random.uniform(0, 2 * np.pi, size=(2, sensors))


def recording(length, faults):
    """Two rhythms, mixed in each sensor its own way; in a fault some sensors hang, jump or run out of time."""
    phases = np.cumsum(2 * np.pi / np.array([25, 70]) * random.normal(1, 0.05, size=(length, 2)), axis=0)[:, :, None]
    values = (gains * np.sin(phases + delays)).sum(1) + 0.03 * random.normal(size=(length, sensors))
    labels = np.zeros(length, int)
    for number, start in enumerate(random.choice(np.arange(1, length // 100), faults, replace=False) * 100):
        part = slice(start, start + random.integers(15, 50))
        hit = random.choice(sensors, 3, replace=False)
        changed = [values[start, hit], values[part, hit] + 0.4, -values[part, hit]][number % 3]
        values[part, hit], labels[part] = changed, 1
    return ((values + 1) / 2).astype(np.float32), labels


train, _ = recording(4500, faults=0)
test, labels = recording(3000, faults=12)
detector = TcnED(
    seq_len=30, epochs=6, batch_size=64, lr=2e-3, hidden_dims=[32, 32], rep_dim=4, kernel_size=3, prt_steps=1, device="cpu",
    verbose=1, random_state=0,
)  # fmt: skip
detector.fit(train)  # it cannot resume
joblib.dump(detector, folder / "detector.joblib")
scores = detector.decision_function(test)
adjusted = point_adjustment(labels, scores)
print(f"average precision {auc_pr(labels, scores):.4f}, adjusted {auc_pr(labels, adjusted):.4f}")
print(f"test auc {auc_roc(labels, scores):.4f}")
