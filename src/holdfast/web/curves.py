"""The curves of a run for the page: read on as rows come, thinned so that no spike is lost, smoothed on request.

Pure numpy over `probe.follow`. A million rows are held as columns of four and eight bytes; an answer has a few hundred points.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.probe.follow import Follower
from holdfast.signals.metric_direction import metric_name
from holdfast.signals.run_folder import Recording, RunFolder
from holdfast.signals.thinning import thinned
from holdfast.signals.view import measured

STEP_CURVES = ("loss", "grad_norm", "lr", "step_seconds", "data_seconds", "host_rss", "gpu_allocated")
_KINDS = {"step": "i8", "epoch": "i4", "time": "f8", **dict.fromkeys(STEP_CURVES, "f4")}
_EVALUATION = ("step", "epoch", "time", "split", "name", "value")
_GPU = ("time", "utilisation")
_MISSING = np.float32(np.finfo(np.float32).max)  # not measured; NaN and Inf are values
_FIRST = 4096
_OVERVIEW = 96
AXES = ("step", "epoch", "time")

Array = npt.NDArray[Any]


class Columns:
    """Columns that grow; what was handed out does not change."""

    def __init__(self) -> None:
        self.rows = 0
        self._held: dict[str, Array] = {name: np.empty(_FIRST, kind) for name, kind in _KINDS.items()}

    def append(self, rows: Mapping[str, Array]) -> None:
        """Add rows of `steps`."""
        end = self.rows + len(rows["step"])
        for name, held in self._held.items():
            if end > len(held):
                larger = np.empty(max(end, 2 * len(held)), held.dtype)
                larger[: self.rows] = held[: self.rows]
                self._held[name] = held = larger
            values = rows[name]
            if name in STEP_CURVES:
                with np.errstate(over="ignore"):
                    held[self.rows : end] = np.where(measured(values), values, _MISSING)
            else:
                held[self.rows : end] = values
        self.rows = end

    def __getitem__(self, name: str) -> Array:
        return self._held[name][: self.rows]


class RunCurves:
    """The curves of one run's lowest rank, over all its restarts."""

    def __init__(self, run: RunFolder) -> None:
        self._run, self._lock = run, threading.Lock()
        self._steps: dict[str, Follower] = {}
        self._evaluations: dict[str, Follower] = {}
        self._gpus = Follower(run.path / "host", "gpus", _GPU)
        self.columns = Columns()
        self.evaluations: dict[str, list[tuple[int, int, float, float]]] = {}  # name -> step, epoch, time, value
        self.gpu: list[tuple[float, float]] = []

    def update(self) -> int:
        """Read what has come; the number of rows of steps."""
        with self._lock:
            for recording in _of_lowest_rank(self._run):
                self._read(recording)
            gpus = self._gpus.new_rows(1 << 22)
            self.gpu += zip(gpus["time"].tolist(), gpus["utilisation"].tolist(), strict=True)
            return self.columns.rows

    def _read(self, recording: Recording) -> None:
        steps = self._steps.setdefault(recording.name, Follower(recording.path, "steps", tuple(_KINDS)))
        while len((rows := steps.new_rows(1 << 18))["step"]):
            self.columns.append(rows)
        follower = self._evaluations.setdefault(recording.name, Follower(recording.path, "evaluations", _EVALUATION))
        new = follower.new_rows(1 << 20)
        for step, epoch, when, split, name, value in zip(*(new[key] for key in _EVALUATION), strict=True):
            key = metric_name(str(split), str(name))
            self.evaluations.setdefault(key, []).append((int(step), int(epoch), float(when), float(value)))

    def answer(
        self, *, along: str = "step", low: float | None = None, high: float | None = None, points: int = 800, smooth: int = 0
    ) -> dict[str, Any]:
        """Every curve between two positions: positions, values, where a value was not finite, and the running mean."""
        columns, rows = self.columns, self.columns.rows
        positions, kept = along_axis(columns, along)
        curves = {}
        for name in STEP_CURVES:
            values = columns[name][:rows][kept]
            present = values != _MISSING
            if present.any():
                curves[name] = thinned(positions[present], values[present], low=low, high=high, points=points, smooth=smooth)
        evaluations = {}
        for name, entries in self.evaluations.items():
            at, values = self._evaluated(entries, along, columns)
            evaluations[name] = thinned(at, values, low=low, high=high, points=points)
        gpu = self._gpu_curve(along, positions, columns["time"][kept])
        if gpu is not None:
            curves["gpu"] = thinned(*gpu, low=low, high=high, points=points)
        return {"along": along, "rows": rows, "curves": curves, "evaluations": evaluations}

    def since(self, rows: int, along: str, points: int = 200) -> dict[str, Any]:
        """The same of the rows that came after the first `rows`."""
        positions, kept = along_axis(self.columns, along)
        number = np.flatnonzero(kept)
        new = number >= rows
        curves = {}
        for name in STEP_CURVES:
            values = self.columns[name][number[new]]
            present = values != _MISSING
            if present.any():
                curves[name] = thinned(positions[new][present], values[present], points=points)
        return {"along": along, "rows": self.columns.rows, "curves": curves}

    def positions_of(self, steps: Sequence[int | None], times: Sequence[float | None], along: str) -> list[float | None]:
        """Where events are along an axis; None where that is not known."""
        if along != "epoch":
            return list(steps if along == "step" else times)
        positions, kept = along_axis(self.columns, "epoch")
        if not len(positions):
            return [None] * len(steps)
        at = np.searchsorted(self.columns["step"][kept], [step or 0 for step in steps])
        nearest = positions[np.minimum(at, len(positions) - 1)].tolist()
        return [None if step is None else round(value, 4) for step, value in zip(steps, nearest, strict=True)]

    def _evaluated(self, entries: Sequence[tuple[int, int, float, float]], along: str, columns: Columns) -> tuple[Array, Array]:
        table = np.array(entries, np.float64)
        order = np.argsort(table[:, 2], kind="stable")
        table = table[order]
        table = table[_not_repeated(table[:, 0])] if along != "time" else table
        if along == "epoch":
            positions, kept = along_axis(columns, "epoch")
            at = np.searchsorted(columns["step"][kept], table[:, 0])
            table[:, 1] = positions[np.minimum(at, len(positions) - 1)] if len(positions) else table[:, 1]
        return table[:, AXES.index(along)], table[:, 3]

    def _gpu_curve(self, along: str, positions: Array, times: Array) -> tuple[Array, Array] | None:
        """GPU utilisation, which is known by the clock, along the steps."""
        if not self.gpu or not len(times):
            return None
        table = np.array(self.gpu, np.float64)
        if along == "time":
            return table[:, 0], table[:, 1]
        inside = (table[:, 0] >= times[0]) & (table[:, 0] <= times[-1])
        at = np.minimum(np.searchsorted(times, table[inside, 0]), len(times) - 1)
        return positions[at], table[inside, 1]


class Overview:
    """The loss of a whole run in a few dozen means, read on as it grows; for the small picture in the list."""

    def __init__(self, run: RunFolder) -> None:
        self._run, self._followers = run, dict[str, Follower]()
        self._size, self._rest = 1, np.empty(0, np.float64)
        self._means = np.empty(0, np.float64)

    def update(self) -> list[float | None]:
        """The means; None where a loss was not finite."""
        for recording in _of_lowest_rank(self._run):
            follower = self._followers.setdefault(recording.name, Follower(recording.path, "steps", ("loss",)))
            while len(losses := follower.new_rows(1 << 18)["loss"]):
                self._add(losses[measured(losses)])
        return [float(f"{value:.4g}") if np.isfinite(value) else None for value in self._means.tolist()]

    def _add(self, losses: Array) -> None:
        self._rest = np.concatenate([self._rest, losses])
        full = len(self._rest) // self._size * self._size
        new = self._rest[:full].reshape(-1, self._size).mean(axis=1)  # a block with NaN or Inf is not finite
        self._means, self._rest = np.concatenate([self._means, new]), self._rest[full:]
        while len(self._means) > _OVERVIEW:
            whole = len(self._means) // 2 * 2
            if whole < len(self._means):
                self._rest = np.concatenate([np.full(self._size, self._means[-1]), self._rest])
            self._means, self._size = self._means[:whole].reshape(-1, 2).mean(axis=1), 2 * self._size


def _of_lowest_rank(run: RunFolder) -> list[Recording]:
    recordings = run.recordings() if run.path.is_dir() else []
    return [recording for recording in recordings if recording.rank == recordings[0].rank]


def along_axis(columns: Columns, along: str) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Positions of the rows along an axis, ascending, and which rows those are.

    Steps that were made again, after a roll-back or a restart, count with what came of them last.
    """
    if along == "time":
        return columns["time"], np.ones(columns.rows, bool)
    kept = _not_repeated(columns["step"])
    steps = columns["step"][kept]
    return (steps, kept) if along == "step" else (_epochs(columns["epoch"][kept]), kept)


def _not_repeated(steps: Array) -> npt.NDArray[np.bool_]:
    kept = np.ones(len(steps), bool)
    if len(steps) > 1:
        kept[:-1] = steps[:-1] < np.minimum.accumulate(steps[::-1])[::-1][1:]
    return kept


def _epochs(epochs: Array) -> Array:
    """Epochs as fractions: how far into its epoch each row is. The last is taken to be as long as the one before it."""
    if not len(epochs):
        return epochs.astype("f8")
    starts = np.flatnonzero(np.diff(epochs, prepend=epochs[0] - 1))
    lengths = np.diff(starts, append=len(epochs))
    if len(lengths) > 1:
        lengths[-1] = max(lengths[-1], lengths[-2])
    which = np.cumsum(np.diff(epochs, prepend=epochs[0]) != 0)
    fractions = (np.arange(len(epochs)) - starts[which]) / lengths[which]
    return np.maximum.accumulate(np.maximum(epochs, 0) + fractions)
