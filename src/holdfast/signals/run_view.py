"""A run of ours as detectors of `detectors/runs` look at it: bounded, made row by row, the same live and afterwards.

Pure numpy. The steps of late in full, the whole run as a few blocks, and each parameter as its last samples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from holdfast.signals.schema import TABLES, Kind
from holdfast.signals.view import Column, Floats, Steps, measured

STEP_COLUMNS = (
    *("step", "epoch", "loss", "lr", "grad_norm", "update_ratio", "step_seconds", "data_seconds", "skipped"),
    *("host_rss", "gpu_allocated", "workers_rss"),
)
PARAMETER_COLUMNS = ("step", "name", "grad_norm", "grad_max", "weight_norm")
UNTRAINED_COLUMNS = ("step", "name", "why", "position", "of")
INPUT_COLUMNS = (
    *("step", "split", "source", "field", "mean", "deviation", "samples", "distinct", "known", "entropy", "known_share"),
    "repeats",
)
ROWS = 4096
BLOCKS = 64  # that a whole run is kept in; two become one when there are more
SAMPLES = 24  # of each parameter
EVALUATIONS = 256
INPUTS = 1024
WAITS = 1024


@dataclass(slots=True)
class Samples:
    """One parameter at the steps where it was sampled, newest last."""

    steps: deque[int] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    grad_norm: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    grad_max: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    weight_norm: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))

    def norms(self) -> Floats:
        """The gradient norms."""
        return np.array(self.grad_norm)


class Untrained(NamedTuple):
    """A parameter that no update reaches: why, since which step, and which of how many of the model it is."""

    why: str
    since: int
    position: int
    of: int


class InputSample(NamedTuple):
    """One field of a batch that was looked at."""

    step: int
    split: str
    source: int
    field: str
    mean: float
    deviation: float
    samples: int
    distinct: int
    known: int
    entropy: float
    known_share: float
    repeats: int


class Blocks:
    """A column over the whole run as the means of at most `BLOCKS` blocks of the same size."""

    def __init__(self) -> None:
        self._size, self._sum, self._count, self._seen = 1, 0.0, 0, 0
        self._means: list[float] = []

    def add(self, value: float) -> None:
        """Take in one row."""
        self._seen += 1
        self._sum, self._count = self._sum + value, self._count + 1
        if self._count < self._size:
            return
        self._means.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if len(self._means) == BLOCKS:
            pairs = np.array(self._means).reshape(-1, 2)
            self._means, self._size = [float(mean) for mean in pairs.mean(axis=1)], 2 * self._size

    @property
    def means(self) -> Floats:
        """The blocks that are full."""
        return np.array(self._means)

    @property
    def size(self) -> int:
        """Rows in a block."""
        return self._size


class RunView:
    """A run as of its newest row."""

    def __init__(self) -> None:
        kinds = {column.name: column.kind for column in TABLES["steps"].columns}
        self._columns: dict[str, Column] = {
            name: np.zeros(2 * ROWS, "<i8" if kinds[name] is Kind.INT else "<f8") for name in STEP_COLUMNS
        }
        self._end, self.seen = 0, 0
        self.whole = {name: Blocks() for name in ("loss", "host_rss", "gpu_allocated")}
        self.own_seconds = Blocks()  # of the steps, without waiting for data
        self.parameters: dict[str, Samples] = {}
        self.untrained: dict[str, Untrained] = {}
        self.workers = -1  # of the loader; not known before its first row
        self.ready: deque[tuple[int, int]] = deque(maxlen=16)  # step, batches that waited to be drawn; about once a second
        self.waits: deque[tuple[int, int, float]] = deque(maxlen=WAITS)  # step, worker, seconds that were waited for it
        self.persistent: bool | None = None  # whether its workers stay over epochs
        self.pinned: bool | None = None  # whether its batches are
        self.cores: int | None = None  # that the training may use
        self.evaluated: deque[int] = deque(maxlen=EVALUATIONS)  # steps before which the model was evaluated
        self.inputs: deque[InputSample] = deque(maxlen=INPUTS)
        self.passes: deque[int] = deque(maxlen=ROWS)  # the rows with which the last passes over the data began
        self.peak_lr = 0.0
        self.ended = False  # no more rows will come

    @property
    def step(self) -> int:
        """The newest step; -1 before the first."""
        return int(self._columns["step"][self._end - 1]) if self._end else -1

    def column(self, name: str, count: int = ROWS) -> Column:
        """A column over the last `count` rows, missing values and all."""
        return self._columns[name][max(0, self._end - count) : self._end]

    def finite(self, name: str, count: int = ROWS) -> tuple[Steps, Floats]:
        """What was measured and is finite of it."""
        values, steps = self.column(name, count), self.column("step", count)
        wanted = measured(values)
        if values.dtype.kind == "f":
            wanted &= np.isfinite(values)
        return steps[wanted], values[wanted].astype(np.float64)

    def add_steps(self, rows: Mapping[str, Column]) -> None:
        """Take in some rows of `steps`, many fewer than are kept."""
        count = len(rows["step"])
        if self._end + count > 2 * ROWS:
            for values in self._columns.values():
                values[:ROWS] = values[self._end - ROWS : self._end].copy()
            self._end = ROWS
        for name, values in self._columns.items():
            values[self._end : self._end + count] = rows[name]
        self._end += count
        self.seen += count
        self._note_passes(count)
        for name, blocks in self.whole.items():
            for value in self.finite(name, count)[1]:
                blocks.add(float(value))
        self._add_seconds(count)
        rates = self.finite("lr", count)[1]
        self.peak_lr = max(self.peak_lr, float(rates.max()) if len(rates) else 0.0)

    def _note_passes(self, count: int) -> None:
        epochs = self.column("epoch", count + 1)
        first = self.seen - len(epochs)
        starts = (np.flatnonzero(epochs[1:] != epochs[:-1]) + 1 + first).tolist()
        self.passes.extend(starts if first or self.passes else [0, *starts])

    def _add_seconds(self, count: int) -> None:
        whole, waited = self.column("step_seconds", count), self.column("data_seconds", count)
        valid = measured(whole) & np.isfinite(whole)
        own = np.where(measured(waited) & np.isfinite(waited), whole - waited, whole)
        for value in own[valid]:
            self.own_seconds.add(float(value))

    def add_parameter(self, step: int, name: str, grad_norm: float, grad_max: float, weight_norm: float) -> None:
        """Take in one row of `parameters`."""
        samples = self.parameters.setdefault(name, Samples())
        if samples.steps and samples.steps[-1] >= step:
            return  # a roll-back: those steps come again
        samples.steps.append(step)
        samples.grad_norm.append(grad_norm)
        samples.grad_max.append(grad_max)
        samples.weight_norm.append(weight_norm)

    def add_untrained(self, step: int, name: str, why: str, position: int, of: int) -> None:
        """Take in one row of `untrained`."""
        if why == "trained":
            self.untrained.pop(name, None)
        else:
            self.untrained[name] = Untrained(why, step, position, of)
