"""Write the metrics of a training: those of its evaluations, and those that the script gives. One on a GPU is not waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from holdfast.inside.gradients.device_reader import Transfer
    from holdfast.inside.training import Training


class Logged(NamedTuple):
    """A metric that the script gave to `run.log`."""

    name: str
    value: float | torch.Tensor
    split: str
    step: int | None


def write_losses(training: Training, sums: dict[str, Any]) -> None:
    """Write the losses of an evaluation that has ended; those on a GPU when they have arrived."""
    step, epoch = training.step, training.loader.epoch
    for name, total in sums.items():
        if isinstance(total.total, torch.Tensor) and training.reader is not None:
            _carry(training, step, name, "val", total.total, total.samples, total.samples)
        else:
            training.step_table.losses(step, epoch, {name: total})


def write_logged(training: Training, metric: Logged) -> None:
    """Write a metric that the script gave."""
    step = training.step if metric.step is None else metric.step
    value, epoch = metric.value, training.loader.epoch
    if isinstance(value, torch.Tensor) and value.device.type != "cpu" and training.reader is not None:
        _carry(training, step, metric.name, metric.split, value.detach(), 1, None)
    else:
        training.step_table.evaluation(step, epoch, metric.name, metric.split, float(_plain(value)), None)


def _carry(training: Training, step: int, name: str, split: str, total: torch.Tensor, divisor: int, samples: int | None) -> None:
    step_table, epoch = training.step_table, training.loader.epoch

    def arrived(transfer: Transfer) -> None:
        if transfer.rest is not None:
            step_table.evaluation(step, epoch, name, split, float(transfer.rest[0]) / max(divisor, 1), samples)

    if training.reader is not None:
        training.reader.send(None, [total], arrived)


def _plain(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value
