"""Write evaluation losses and the script's own metrics. A value on a GPU is written when it arrives, without waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from holdfast.inside.gradients.device_reader import Transfer
    from holdfast.inside.observers.evaluations import LossSum
    from holdfast.inside.training import Training


class Logged(NamedTuple):
    """A metric that the script gave to `run.log`."""

    name: str
    value: float | torch.Tensor
    split: str
    step: int | None


def write_losses(training: Training, sums: dict[str, LossSum]) -> None:
    """Write the losses of an evaluation that has ended."""
    step, epoch = training.step, training.loader.epoch
    for name, loss in sums.items():
        if isinstance(loss.total, torch.Tensor) and training.reader is not None:
            _send(training, step, name, "val", loss.total, loss.samples, loss.samples)
        else:
            training.step_table.losses(step, epoch, {name: loss})


def write_logged(training: Training, metric: Logged) -> None:
    """Write a metric of the script."""
    step = training.step if metric.step is None else metric.step
    value = metric.value.detach() if isinstance(metric.value, torch.Tensor) else metric.value
    if isinstance(value, torch.Tensor) and value.device.type != "cpu" and training.reader is not None:
        _send(training, step, metric.name, metric.split, value, 1, None)
    else:
        training.step_table.evaluation(step, training.loader.epoch, metric.name, metric.split, float(value), None)


def _send(training: Training, step: int, name: str, split: str, total: torch.Tensor, divisor: int, samples: int | None) -> None:
    step_table, epoch = training.step_table, training.loader.epoch

    def arrived(transfer: Transfer) -> None:
        if transfer.rest is not None:
            step_table.evaluation(step, epoch, name, split, float(transfer.rest[0]) / max(divisor, 1), samples)

    if training.reader is not None:
        training.reader.send(None, [total], arrived)
