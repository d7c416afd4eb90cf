"""A small task in the trainer's loop: handwritten digits, with dropout and noise, so that every generator matters.

usage: loop_digits.py NAME=VALUE …     settings of the trainer, and:
    resume=PATH    resume from a run or checkpoint
    final=FILE     write the final weights there
    seen=FILE      write the indices of every batch there
    die=BATCH      kill this process in the first attempt, after so many batches
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset

from holdfast.train.devices import Place, place
from holdfast.train.loop import Training
from holdfast.train.settings import TrainSettings, read_settings
from holdfast.train.task import Batch, Evaluation


class Digits(Dataset[Any]):
    def __init__(self, rows: slice, noise: float) -> None:
        inputs, labels = load_digits(return_X_y=True)
        self.inputs, self.labels = torch.tensor(inputs[rows], dtype=torch.float32) / 16, torch.tensor(labels[rows])
        self.noise = noise

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        image = self.inputs[index]
        return {"image": image + self.noise * torch.randn_like(image), "label": self.labels[index], "index": torch.tensor(index)}


class DigitsTask:
    metric, lr = "accuracy", 1e-2

    def __init__(self, *, seen: str = "", die: int = 0) -> None:
        self._seen, self._die, self._batches = seen, die, 0

    def train_data(self) -> Dataset[Any]:
        return Digits(slice(0, 1000), 0.1)

    def val_data(self) -> Dataset[Any]:
        return Digits(slice(1000, 1400), 0.0)

    def collate(self, samples: list[Any]) -> Batch:
        return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))

    def begin_epoch(self, model: nn.Module, epoch: int) -> bool:
        return False

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        self._batches += 1
        if self._batches == self._die and "HOLDFAST_ATTEMPT" not in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._seen:
            with Path(f"{self._seen}-{place_words()}").open("a") as file:
                file.write(" ".join(map(str, batch["index"].tolist())) + "\n")
        return nn.functional.cross_entropy(model(batch["image"]), batch["label"])

    def loss_weight(self, batch: Batch) -> float:
        return float(len(batch["label"]))

    def evaluate(self, model: nn.Module, batches: Iterable[Batch], place: Place) -> Evaluation:
        right = total = 0
        for batch in batches:
            right += int((model(batch["image"]).argmax(1) == batch["label"]).sum())
            total += len(batch["label"])
        counts = place.gather((right, total))
        return Evaluation(metrics={"accuracy": sum(one for one, _ in counts) / sum(all for _, all in counts)})

    def finish(self, model: nn.Module, evaluation: Evaluation, folder: Path) -> dict[str, Any]:
        return {}


def place_words() -> str:
    return os.environ.get("RANK", "0")


def main() -> None:
    values = dict(word.split("=", 1) for word in sys.argv[1:])
    resume, final = values.pop("resume", None), values.pop("final", None)
    task = DigitsTask(seen=values.pop("seen", ""), die=int(values.pop("die", 0)))
    settings = read_settings(TrainSettings, None, {"epochs": 4, "batch_size": 50, "workers": 0, "warmup_epochs": 1, **values})
    with place(settings.device) as here:
        training = Training(task, settings, here)
        training.fit(Path(resume) if resume else None)
        if final and here.is_first:
            torch.save({"model": training.model.state_dict(), "step": training.schedule.last_epoch}, final)


if __name__ == "__main__":
    main()
