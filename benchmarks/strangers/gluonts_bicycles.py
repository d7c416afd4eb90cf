"""GluonTS' DeepAR, in Lightning's loop: how many bicycles are hired in the next twelve hours at eighty made-up stations."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from gluonts.dataset.common import ListDataset
from gluonts.torch import DeepAREstimator
from gluonts.torch.distributions import NegativeBinomialOutput
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint

PACKAGE = "gluonts"
PIP = "gluonts[torch]"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

folder = Path(sys.argv[1])
seed_everything(0)
random, stations, hours, ahead = np.random.default_rng(0), 80, 24 * 19, 12
hour = np.arange(hours)
to_work, back, noon = (np.exp(-(((hour % 24) - at) ** 2) / (2 * width**2)) for at, width in ((8, 1.2), (17, 1.8), (13, 3.5)))
weekend = hour // 24 % 7 >= 5
hires = []
for _ in range(stations):
    mixed = random.dirichlet([2, 2, 2])
    usual = np.where(weekend, 1.5 * noon, mixed @ np.stack([2 * to_work, 1.5 * back, noon]))
    rates = random.uniform(8, 60) * (usual + 0.03)
    hires.append(random.poisson(rates * random.gamma(20, 1 / 20, hours)).astype(float))
start = pd.Period("2024-06-03 00:00", "h")


def known(hours_before_the_end):
    end = hours - hours_before_the_end
    return ListDataset([{"target": station[:end], "start": start} for station in hires], freq="h")


estimator = DeepAREstimator(
    freq="h", prediction_length=ahead, context_length=36, num_layers=2, hidden_size=32, lr=2e-3, dropout_rate=0.1, batch_size=32,
    lags_seq=[1, 2, 3, 23, 24, 25, 168], num_batches_per_epoch=40, distr_output=NegativeBinomialOutput(), num_parallel_samples=50,
    trainer_kwargs={
        "max_epochs": 14, "accelerator": "cpu", "default_root_dir": folder, "gradient_clip_val": 10.0,
        "enable_progress_bar": False, "callbacks": [ModelCheckpoint(folder / "checkpoints", save_last=True)],
    },
)  # fmt: skip
last = folder / "checkpoints/last.ckpt"  # of an earlier start, which this one continues
predictor = estimator.train(known(2 * ahead), known(ahead), cache_data=True, ckpt_path=str(last) if last.exists() else None)
(folder / "predictor").mkdir(exist_ok=True)
predictor.serialize(folder / "predictor")

seed_everything(1)
truth = np.stack(hires)[:, -ahead:]
told = np.stack([forecast.median for forecast in predictor.predict(known(ahead))])
print(f"the day before told again: {np.abs(np.stack(hires)[:, -ahead - 24 : -24] - truth).mean():.4f} bicycles an hour off")
print(f"test error {np.abs(told - truth).mean():.4f} bicycles an hour")
