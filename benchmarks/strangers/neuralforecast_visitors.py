"""NeuralForecast's NHITS, in Lightning's loop: next week's visitors of sixty made-up museums, from the four weeks before."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from neuralforecast import NeuralForecast
from neuralforecast.losses.pytorch import MAE
from neuralforecast.models import NHITS
from pytorch_lightning.callbacks import ModelCheckpoint

PACKAGE = "neuralforecast"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

folder = Path(sys.argv[1])
random, museums, days, horizon = np.random.default_rng(0), 60, 400, 7
day = np.arange(days)
series = []
for museum in range(museums):
    week = np.roll(np.array([0, 0.7, 0.8, 0.8, 1.0, 1.6, 1.4]), random.integers(-1, 2)) * random.uniform(0.8, 1.2, 7)
    year = 1 + random.uniform(0.1, 0.4) * np.sin(2 * np.pi * (day / 365 + random.random()))
    weather = np.zeros(days)
    for today in range(1, days):
        weather[today] = 0.8 * weather[today - 1] + 0.1 * random.normal()
    rates = random.uniform(100, 800) * week[day % 7] * year * np.exp(weather)
    dates = pd.date_range("2023-01-02", periods=days)
    series.append(pd.DataFrame({"unique_id": f"museum {museum}", "ds": dates, "y": random.poisson(rates).astype(float)}))
table = pd.concat(series)
last = table.ds.max() - pd.Timedelta(days=horizon)

model = NHITS(
    h=horizon, input_size=4 * horizon, loss=MAE(), max_steps=600, val_check_steps=100, early_stop_patience_steps=4,
    learning_rate=1e-3, batch_size=20, windows_batch_size=128, scaler_type="standard", random_seed=1,
    mlp_units=[[128, 128]] * 3, accelerator="cpu", default_root_dir=folder, enable_checkpointing=True,
    callbacks=[ModelCheckpoint(folder / "checkpoints", monitor="valid_loss", save_top_k=1, save_last=True)],
)  # fmt: skip
forecaster = NeuralForecast(models=[model], freq="D")
forecaster.fit(table[table.ds <= last], val_size=4 * horizon)  # it cannot resume
forecaster.save(str(folder / "saved"), overwrite=True, save_dataset=False)

told = forecaster.predict().merge(table, on=["unique_id", "ds"])
before = table.assign(ds=table.ds + pd.Timedelta(days=7)).rename(columns={"y": "before"})
told = told.merge(before, on=["unique_id", "ds"])
error, simple = (told.NHITS - told.y).abs().mean(), (told.before - told.y).abs().mean()
print(f"the week before told again: error of {simple:.2f} visitors a day")
print(f"test error {error:.2f} visitors a day")
