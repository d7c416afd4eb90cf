"""A whole run as a few curves: losses, metrics and settings over its length, from live tables or from any tool's log.

Pure numpy. What detectors of whole histories look at; a run of any length is brought to at most a few hundred points.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]
_LOSS, _METRIC = "loss", "metric"
HELD_OUT = ("val", "test")


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """One series: `role` is loss, metric, lr, norm, seconds, data_seconds, memory, utilisation or other."""

    name: str
    steps: Steps
    values: Floats
    role: str = field(default="other", kw_only=True)
    split: str = field(default="train", kw_only=True)
    better: str | None = field(default=None, kw_only=True)  # "lower" or "higher"; None where nobody can tell
    epochs: Floats | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        return len(self.values)

    def finite(self) -> Curve:
        """The same without what is not a number."""
        return self._where(np.isfinite(self.values))

    def since(self, step: float) -> Curve:
        """The same from a step on."""
        return self._where(self.steps >= step)

    def _where(self, chosen: npt.NDArray[np.bool_]) -> Curve:
        if chosen.all():
            return self
        epochs = None if self.epochs is None else self.epochs[chosen]
        return replace(self, steps=self.steps[chosen], values=self.values[chosen], epochs=epochs)

    def epoch_at(self, index: int) -> float | None:
        """The epoch of a point, if it is known."""
        return None if self.epochs is None or not np.isfinite(self.epochs[index]) else float(self.epochs[index])


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """All curves of one run. The first of a role is the one that represents it."""

    name: str
    curves: tuple[Curve, ...]
    source: str = field(default="", kw_only=True)  # which kind of log
    planned_steps: int | None = field(default=None, kw_only=True)
    made_steps: int | None = field(default=None, kw_only=True)  # where the curves are those of blocks of steps
    notes: tuple[str, ...] = field(default=(), kw_only=True)

    def of(self, role: str, *splits: str) -> list[Curve]:
        """The curves of a role, of these splits or of all."""
        return [curve for curve in self.curves if curve.role == role and (not splits or curve.split in splits)]

    @property
    def train_loss(self) -> Curve | None:
        """The loss on what is learned from."""
        return next(iter(self.of(_LOSS, "train")), None)

    @property
    def val_loss(self) -> Curve | None:
        """The loss on what was held out."""
        return next(iter(self.of(_LOSS, *HELD_OUT)), None)

    @property
    def metrics(self) -> list[Curve]:
        """Metrics on what was held out, or if there are none, of the training; only those whose direction is known."""
        metrics = [curve for curve in self.of(_METRIC) if curve.better is not None]
        return [curve for curve in metrics if curve.split in HELD_OUT] or metrics

    @property
    def steps(self) -> int:
        """How long the run is: the newest step."""
        return max((int(curve.steps[-1]) for curve in self.curves if len(curve)), default=0)

    @property
    def num_steps(self) -> int:
        """How many steps were made, as far as the log tells."""
        return self.steps if self.made_steps is None else self.made_steps

    @property
    def points(self) -> int:
        """How many points the curve has that says most."""
        return max((len(curve) for curve in (*self.of(_LOSS), *self.of(_METRIC))), default=0)
