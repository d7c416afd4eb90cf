"""Evaluates events batch by batch in bounded memory: sums, counts of errors by size, and the worst events."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from holdfast.train.sensors.array import SensorArray, Target
from holdfast.train.sensors.losses import target_losses
from holdfast.train.sensors.model import FILLED

SHOWN, POINTS = 6, 2000  # worst events; predictions that are drawn against the truth
_EDGES = np.logspace(-9, 9, 1801)  # of the sizes of errors: 100 in each power of ten
Array = npt.NDArray[Any]


class Judged(NamedTuple):
    """One event: its loss, where it lies, its values, and what was predicted for it."""

    loss: float
    number: int
    values: Array
    hidden: Array | None
    predicted: Array
    truth: Array


class Errors:
    """The errors of one target or face, in its own units."""

    def __init__(self) -> None:
        self.count, self.absolute, self.squared, self.signed = 0, 0.0, 0.0, 0.0
        self.sizes = np.zeros(len(_EDGES) + 1, np.int64)

    def add(self, errors: Array) -> None:
        """Count some errors."""
        errors = errors[np.isfinite(errors)].astype(np.float64)
        self.count += errors.size
        self.absolute += float(np.abs(errors).sum())
        self.squared += float(np.square(errors).sum())
        self.signed += float(errors.sum())
        self.sizes += np.bincount(np.searchsorted(_EDGES, np.abs(errors)), minlength=len(self.sizes))

    def merge(self, other: Errors) -> None:
        """Count those of another rank."""
        for name in ("count", "absolute", "squared", "signed", "sizes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def quantile(self, fraction: float) -> float:
        """The size below which this fraction of the errors is, to about 2 %."""
        if not self.count:
            return math.nan
        place = int(np.searchsorted(np.cumsum(self.sizes), fraction * self.count))
        return float(_EDGES[min(max(place - 1, 0), len(_EDGES) - 1)])

    @property
    def mean(self) -> float:
        """The mean absolute error."""
        return self.absolute / self.count if self.count else math.nan

    @property
    def rmse(self) -> float:
        """The root of the mean squared error."""
        return math.sqrt(self.squared / self.count) if self.count else math.nan

    @property
    def bias(self) -> float:
        """The mean error."""
        return self.signed / self.count if self.count else math.nan


class Evaluator:
    """What one rank has evaluated."""

    def __init__(self, array: SensorArray, targets: Sequence[Target]) -> None:
        self._array, self._targets = array, tuple(targets)
        self.names = [target.name for target in targets] or [face.name for face in array.faces]
        self.errors = {name: Errors() for name in self.names}
        self.events, self.loss, self.hidden, self.valid = 0, 0.0, 0, 0
        self.worst: list[tuple[float, int, Judged]] = []
        self.points: list[tuple[int, Array, Array]] = []  # (index, truth, prediction) of the first events

    def add_targets(self, batch: dict[str, torch.Tensor], outputs: dict[str, torch.Tensor]) -> Array:
        """Count a batch of a regression; the predictions in the targets' own units."""
        losses = target_losses(outputs, batch["targets"], self._targets)
        loss = torch.stack([target.weight * some for target, some in zip(self._targets, losses, strict=True)]).sum(dim=0)
        predicted = torch.cat(
            [outputs[target.name].float() * (target.scale or 1) + (target.offset or 0) for target in self._targets], dim=1
        )
        made, truth, first = predicted.cpu().numpy(), batch["targets"].cpu().numpy(), 0
        for target in self._targets:
            part = slice(first, first + target.size)
            self.errors[target.name].add(made[:, part] - truth[:, part])
            first += target.size
        if len(self.points) < POINTS:
            self.points += list(zip(batch["index"].tolist(), truth, made, strict=True))[: POINTS - len(self.points)]
        self._add(batch, loss, None, made, truth)
        return made

    def add_filled(
        self, batch: dict[str, torch.Tensor], outputs: dict[str, torch.Tensor], hidden: torch.Tensor, loss: torch.Tensor, raw: Any
    ) -> None:
        """Count a batch of reconstructions; errors are in spreads of a channel, on hidden channels."""
        wanted = outputs["valid"] & hidden[:, None]
        errors = torch.where(wanted, outputs[FILLED].float() - outputs["truth"], torch.nan).cpu().numpy()
        for face in self._array.faces:
            self.errors[face.name].add(errors[:, :, face.sensors])
        self.hidden += int(hidden.sum())
        self.valid += int(outputs["valid"].any(dim=1).sum())
        self._add(batch, loss, hidden, raw, batch["values"].cpu().numpy())

    def _add(self, batch: dict[str, torch.Tensor], loss: torch.Tensor, hidden: Any, predicted: Array, truth: Array) -> None:
        losses = loss.double().cpu().numpy()
        self.events += len(losses)
        self.loss += math.fsum(losses.tolist())
        for place in np.argsort(losses)[::-1][:SHOWN].tolist():
            if len(self.worst) == SHOWN and losses[place] <= self.worst[0][0]:
                break
            masked = hidden[place].cpu().numpy() if hidden is not None else None
            values, index = batch["values"][place].cpu().numpy().copy(), int(batch["index"][place])
            judged = Judged(float(losses[place]), index, values, masked, predicted[place].copy(), truth[place].copy())
            heapq.heappush(self.worst, (judged.loss, -judged.number, judged))
            if len(self.worst) > SHOWN:
                heapq.heappop(self.worst)

    @classmethod
    def merged(cls, parts: Iterable[Evaluator]) -> Evaluator:
        """That of all ranks together."""
        first, *others = list(parts)
        for other in others:
            for name in first.names:
                first.errors[name].merge(other.errors[name])
            for name in ("events", "loss", "hidden", "valid"):
                setattr(first, name, getattr(first, name) + getattr(other, name))
            first.worst = heapq.nlargest(SHOWN, [*first.worst, *other.worst])
            first.points = [*first.points, *other.points][:POINTS]
        return first

    def worst_events(self) -> list[Judged]:
        """The events with the largest loss, the worst first."""
        return [judged for _, _, judged in sorted(self.worst, key=lambda some: some[:2], reverse=True)]

    def metrics(self) -> dict[str, float]:
        """The mean loss of an event; errors of each target, or of hidden channels, and which fraction was hidden."""
        metrics = {"val_loss": self.loss / max(self.events, 1)}
        if self._targets:
            metrics |= {f"{name}_mae": self.errors[name].mean for name in self.names}
            return metrics | {f"{name}_rmse": self.errors[name].rmse for name in self.names}
        count = sum(error.count for error in self.errors.values())
        metrics["hidden_mae"] = sum(error.absolute for error in self.errors.values()) / max(count, 1)
        metrics["actual_mask_ratio"] = self.hidden / max(self.valid, 1)
        return metrics | {f"hidden_mae/{name}": self.errors[name].mean for name in self.names}
