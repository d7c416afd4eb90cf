"""What is compared: the run before around the step of the save, and the first steps after the resume. Pure numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from holdfast.signals.view import Floats

NOTHING: Floats = np.empty(0)
Metric = tuple[str, str]  # split, name


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBefore:
    """The run that saved the checkpoint; empty where nothing is known. `later` is what it did after the save, if it continued."""

    loss: Floats = field(default_factory=lambda: NOTHING)  # up to the save
    later: Floats = field(default_factory=lambda: NOTHING)
    first: Floats = field(default_factory=lambda: NOTHING)  # the first losses of the whole training
    lr: Floats = field(default_factory=lambda: NOTHING)
    lr_later: Floats = field(default_factory=lambda: NOTHING)
    lr_first: Floats = field(default_factory=lambda: NOTHING)
    stride: Floats = field(default_factory=lambda: NOTHING)  # size of updates against the weights, per learning rate
    pass_steps: int | None = None  # steps of one pass over the data
    into_pass: int | None = None  # how many of them were made when it was saved
    evaluations: Mapping[Metric, Floats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The first steps after a resume."""

    loss: Floats = field(default_factory=lambda: NOTHING)
    lr: Floats = field(default_factory=lambda: NOTHING)
    stride: Floats = field(default_factory=lambda: NOTHING)  # of the first few steps only
    pass_steps: int | None = None  # of the first pass, once it is over
    evaluations: Mapping[Metric, Floats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What the script put back, as far as it was seen; None where it was not."""

    weights: Mapping[str, int] | None = None  # of, missing, missing_statistics, unexpected
    optimizer: str | None = None  # loaded, empty, keeps nothing
    scheduler: str | None = None  # loaded, as new

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Restored:
        """Read a `resumed` row."""
        weights = row.get("weights")
        counts = {str(name): int(count) for name, count in weights.items()} if isinstance(weights, dict) else None
        words = {name: str(row[name]) for name in ("optimizer", "scheduler") if isinstance(row.get(name), str)}
        return cls(weights=counts, **words)

    def count(self, name: str) -> int:
        """A number of the weights; 0 if nothing is known."""
        return int(self.weights.get(name, 0)) if self.weights is not None else 0
