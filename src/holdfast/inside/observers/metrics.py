"""Write evaluation losses and the script's own metrics. A value on a GPU is written when it arrives, without waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from holdfast.inside.gradients.device_reader import Transfer
    from holdfast.inside.training import Training


class Logged(NamedTuple):
    """A metric that the script gave to `run.log`, or the loss of an evaluation."""

    name: str
    value: float | torch.Tensor
    split: str
    step: int | None = None
    samples: int | None = None


def write_logged(training: Training, metric: Logged) -> None:
    """Write a metric."""
    step, epoch = training.step if metric.step is None else metric.step, training.loader.epoch

    def write(value: float) -> None:
        training.step_table.evaluation(step, epoch, metric.name, metric.split, value, metric.samples)

    def arrived(transfer: Transfer) -> None:
        if transfer.rest is not None:
            write(float(transfer.rest[0]))

    value = metric.value.detach() if isinstance(metric.value, torch.Tensor) else metric.value
    if isinstance(value, torch.Tensor) and not value.is_cpu and training.reader is not None:
        training.reader.send(None, [value], arrived)
    else:
        write(float(value))
