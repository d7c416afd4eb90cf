"""A small sensor array in the trainer's loop.

usage: loop_sensors.py NAME=VALUE …     settings of `holdfast train sensors`, and:
    resume=PATH    resume from a run or checkpoint
    final=FILE     write the final weights there
    die=BATCH      kill this process in the first attempt, after so many batches
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from holdfast.train.devices import place
from holdfast.train.loop import Training
from holdfast.train.sensors.task import SensorsTask
from holdfast.train.settings import SensorsSettings, read_settings
from holdfast.train.task import Batch

INVALID = -1.0
ARRAY = {
    "invalid": INVALID,
    "channels": {"charge": {"transform": "sqrt"}, "time": {}},
    "faces": {
        "wall": {"kind": "grid", "shape": [4, 5], "start": 0},
        "top": {"kind": "hex", "shape": [3, 4], "start": 20},
        "rest": {"kind": "set", "start": 32, "count": 3},
    },
}
TARGETS = {"energy": {}, "place": {"branch": ["x", "y"], "weight": 2.0}}
SENSORS = 35


def events(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """A source of light before 35 sensors; some of them are invalid."""
    random = np.random.default_rng(seed)
    sensors = random.random((SENSORS, 2))
    energy, source = random.uniform(1, 3, count), random.random((count, 2))
    distance = np.linalg.norm(sensors[None] - source[:, None], axis=2) + 0.2
    charge, time = random.poisson(20 * energy[:, None] / distance), distance + random.normal(0, 0.05, distance.shape)
    off = random.random(charge.shape) < 0.1
    columns = {"charge": np.where(off, INVALID, charge), "time": np.where(off, INVALID, time)}
    columns |= {"energy": energy, "x": source[:, 0], "y": source[:, 1]}
    return {name: values.astype(np.float32) for name, values in columns.items()}


def settings_of(values: dict[str, Any]) -> SensorsSettings:
    small = {"width": 16, "depth": 1, "epochs": 2, "batch_size": 16, "workers": 0, "warmup_epochs": 1, "chunksize": 20}
    return read_settings(SensorsSettings, None, {"array": ARRAY, "targets": TARGETS, **small, **values})


class MortalTask(SensorsTask):
    """Dies once."""

    die = batches = 0

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        self.batches += 1
        if self.die == self.batches and "HOLDFAST_ATTEMPT" not in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, batch)


def main() -> None:
    values: dict[str, Any] = dict(word.split("=", 1) for word in sys.argv[1:])
    resume, final, die = (values.pop(name, None) for name in ("resume", "final", "die"))
    settings = settings_of(values)
    torch.set_num_threads(1)  # more cost more than they save at this size
    with place(settings.device) as here:
        task = MortalTask(settings, here)
        task.die = int(die or 0)
        training = Training(task, task.settings, here)
        training.fit(Path(resume) if resume else None)
        if final and here.is_first:
            torch.save({"model": training.model.state_dict(), "step": training.schedule.last_epoch}, final)


if __name__ == "__main__":
    main()
