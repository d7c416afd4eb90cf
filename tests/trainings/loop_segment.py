"""Segmentation in the trainer's loop with a small encoder, for images of discs.

usage: loop_segment.py NAME=VALUE …     settings of `holdfast train segment`, and:
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
from PIL import Image
from torch import nn

from holdfast.train.devices import place
from holdfast.train.loop import Training
from holdfast.train.segment.model import Segmenter
from holdfast.train.segment.task import SegmentTask
from holdfast.train.settings import SegmentSettings, read_settings
from holdfast.train.task import Batch


def draw_discs(folder: Path, count: int = 14, side: int = 64) -> Path:
    """Bright discs on noise, with masks; no split."""
    random, (rows, columns) = np.random.default_rng(0), np.mgrid[:side, :side]
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        mask = np.zeros((side, side), bool)
        for _ in range(random.integers(1, 4)):
            row, column, radius = *random.uniform(8, side - 8, 2), random.uniform(4, 12)
            mask |= (rows - row) ** 2 + (columns - column) ** 2 < radius**2
        image = random.normal(60, 20, (side, side, 3)) + 110 * mask[..., None]
        Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(folder / "images" / f"{number:02d}.png")
        Image.fromarray(mask.astype(np.uint8) * 255).save(folder / "masks" / f"{number:02d}.png")
    return folder


class SmallEncoder(nn.Module):
    """Three scales, with batch normalisation, whose statistics must not move while it is frozen, and dropout."""

    channels, reductions = (8, 16, 24), (4, 8, 16)

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList()
        for given, width, stride in ((3, 8, 4), (8, 16, 2), (16, 24, 2)):
            part = nn.Conv2d(given, width, 3, stride, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout2d(0.1)
            self.stages.append(nn.Sequential(*part))

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        features = []
        for stage in self.stages:
            images = stage(images)
            features.append(images)
        return features

    def layers(self) -> list[nn.Module]:
        return list(self.stages)


class SmallTask(SegmentTask):
    """Segmentation with the small encoder."""

    die = batches = 0

    def build(self) -> tuple[Segmenter, str]:
        settings = self._settings
        model = Segmenter(SmallEncoder(), experts=settings.num_experts, deep_supervision=settings.deep_supervision)
        return model, "none: every layer is initialised at random"

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        self.batches += 1
        if self.die == self.batches and "HOLDFAST_ATTEMPT" not in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, batch)


def settings_of(values: dict[str, Any]) -> SegmentSettings:
    small = {"imgsz": 32, "num_experts": 2, "epochs": 4, "stage1_epochs": 1, "batch_size": 4, "workers": 0, "warmup_epochs": 1}
    return read_settings(SegmentSettings, None, {**small, **values})


def main() -> None:
    values: dict[str, Any] = dict(word.split("=", 1) for word in sys.argv[1:])
    values |= {name: value == "true" for name, value in values.items() if value in ("true", "false")}
    resume, final, die = (values.pop(name, None) for name in ("resume", "final", "die"))
    settings = settings_of(values)
    torch.set_num_threads(1)  # more cost more than they save at this size
    with place(settings.device) as here:
        task = SmallTask(settings, here)
        task.die = int(die or 0)
        training = Training(task, settings, here)
        training.fit(Path(resume) if resume else None)
        if final and here.is_first:
            torch.save({"model": training.model.state_dict(), "step": training.schedule.last_epoch}, final)


if __name__ == "__main__":
    main()
