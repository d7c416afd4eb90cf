"""What the loop needs of a task. A task owns its data, model, loss and evaluation; the loop owns everything between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.data import Dataset

from holdfast.train.devices import Place

Batch = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One pass over the validation data: numbers for the table, and what the task needs to draw the report."""

    metrics: dict[str, float]
    details: Any = field(default=None, repr=False)


class Task(Protocol):
    """One kind of training. `metric` is the name in `Evaluation.metrics` by which the best checkpoint is chosen."""

    metric: str
    lr: float  # the peak learning rate where none is set

    def train_data(self) -> Dataset[Any]:
        """The training samples, augmented."""

    def val_data(self) -> Dataset[Any]:
        """The validation samples, never augmented."""

    def collate(self, samples: list[Any]) -> Batch:
        """Samples as one batch on the host; the number of samples is the first dimension of every tensor or list in it."""

    def model(self) -> nn.Module:
        """The model, with its weights loaded or initialised."""

    def begin_epoch(self, model: nn.Module, epoch: int) -> bool:
        """Freeze and unfreeze parts of the model, which is in training mode; whether other parameters are trained than before."""

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The mean loss of a batch that lies on the model's device."""

    def loss_weight(self, batch: Batch) -> float:
        """What the mean of `loss` is taken over, so that a batch split for memory gives the same gradient."""

    def evaluate(self, model: nn.Module, batches: Iterable[Batch], place: Place) -> Evaluation:
        """Evaluate this rank's validation batches; the metrics are those of all ranks together."""

    def finish(self, model: nn.Module, evaluation: Evaluation, folder: Path) -> dict[str, Any]:
        """Write the trained model and the pictures of its evaluation into `folder`; returns what the report shows."""
