"""Read what a resume is judged by: the run before around the save, and the first steps of the run that continues."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from holdfast.detectors.resume.runs import NOTHING, Metric, Resumed, RunBefore
from holdfast.probe.follow import Follower
from holdfast.probe.rows import Column, last_rows
from holdfast.signals.lineage import Save, ancestors
from holdfast.signals.view import Evaluation, Floats, measured

COLUMNS = ("step", "epoch", "time", "loss", "lr", "update_ratio", "skipped")
EVALUATION = ("step", "split", "name", "value")
_NEAR = 600  # rows before the save that are looked at, and after it
_FIRST = 64
_EVALUATIONS = 512
_SAVING_SECONDS = 600.0  # that a save may take: a count of the script's own is not that of the tables
_STRIDE_STEPS = 6  # after these the moments are new ones anyway


def run_before(save: Save) -> tuple[RunBefore, int] | None:
    """The run of a save around its step, and that step; None if its tables hold nothing of it."""
    folder = save.run / save.recording
    rows = _rows_around(folder, save)
    step = _step_of(save, rows)
    if step is None:
        return None
    until, since = rows["step"] < step, rows["step"] >= step
    past, later = ({name: values[chosen] for name, values in rows.items()} for chosen in (until, since))
    if not len(past["step"]):
        return None
    first = _first_rows(save)
    whole, into = _passes(past["epoch"], from_the_start=int(past["step"][0]) == 0)
    evaluated = last_rows(folder, "evaluations", EVALUATION, _EVALUATIONS)
    before = RunBefore(
        loss=measured_column(past, "loss")[-_NEAR:],
        later=measured_column(later, "loss")[:_NEAR],
        first=measured_column(first, "loss"),
        lr=measured_column(past, "lr")[-_NEAR:],
        lr_later=measured_column(later, "lr")[:_FIRST],
        lr_first=measured_column(first, "lr"),
        stride=strides({name: values[past["step"] >= step - max(100, step // 2)] for name, values in past.items()}),
        pass_steps=whole,
        into_pass=into,
        evaluations=metrics({name: values[evaluated["step"] <= step] for name, values in evaluated.items()}),
    )
    return before, step


def evaluations_before(save: Save, step: int) -> list[Evaluation]:
    """What the run of a save was evaluated to until its step, oldest first."""
    rows = last_rows(save.run / save.recording, "evaluations", EVALUATION, _EVALUATIONS)
    each = zip(rows["step"], rows["split"], rows["name"], rows["value"], strict=True)
    return [Evaluation(int(at), str(split), str(name), float(value)) for at, split, name, value in each if at <= step]


def resumed(rows: Mapping[str, Column], evaluated: Mapping[str, Column]) -> Resumed:
    """The first steps after a resume, from all rows so far."""
    early = {name: values[: _STRIDE_STEPS + 1] for name, values in rows.items()}
    epochs = rows["epoch"]
    over = len(epochs) > 0 and measured(epochs).all() and epochs[-1] != epochs[0]
    return Resumed(
        loss=measured_column(rows, "loss"),
        lr=measured_column(rows, "lr"),
        stride=strides(early),
        pass_steps=int(np.sum(epochs == epochs[0])) if over else None,
        evaluations=metrics(evaluated),
    )


def measured_column(rows: Mapping[str, Column], name: str) -> Floats:
    """A column where it was measured, at steps whose update was made; NaN that was measured stays."""
    values = rows[name]
    chosen: Floats = values[measured(values) & (rows["skipped"] != 1)].astype(np.float64)
    return chosen


def strides(rows: Mapping[str, Column]) -> Floats:
    """Sizes of updates per learning rate, where both were measured."""
    ratio, rate = rows["update_ratio"], rows["lr"]
    both = measured(ratio) & measured(rate) & (rate > 0)
    return ratio[both] / rate[both] if both.any() else NOTHING


def metrics(rows: Mapping[str, Column]) -> dict[Metric, Floats]:
    """The values of each metric, oldest first."""
    by_metric: dict[Metric, list[float]] = {}
    for split, name, value in zip(rows["split"], rows["name"], rows["value"], strict=True):
        by_metric.setdefault((str(split), str(name)), []).append(float(value))
    return {metric: np.array(values) for metric, values in by_metric.items()}


def _rows_around(folder: Path, save: Save) -> dict[str, Column]:
    """The rows of a table from well before the save on; a run that continued for long is read back far enough."""
    count = 4 * _NEAR
    while True:
        rows = last_rows(folder, "steps", COLUMNS, count)
        steps = rows["step"]
        step = _step_of(save, rows)
        if len(steps) < count or (step is not None and steps[0] <= step - _NEAR):
            return rows
        count *= 8


def _step_of(save: Save, rows: Mapping[str, Column]) -> int | None:
    """How many steps came before the save: as its row says, if that fits the time, or all that were made by then."""
    steps, times = rows["step"], rows["time"]
    if save.exact and save.step is not None:
        last = np.flatnonzero(steps == save.step - 1)
        if not save.time or (len(last) and abs(save.time - float(times[last[0]])) < _SAVING_SECONDS):
            return save.step
    by_then = steps[times <= save.time] if save.time else steps
    return int(by_then[-1]) + 1 if len(by_then) else None


def _first_rows(save: Save) -> dict[str, Column]:
    """The first rows of the whole training: those of the run that started from scratch."""
    *_, oldest = ancestors(save)
    return Follower(oldest.run / oldest.recording, "steps", COLUMNS).new_rows(_FIRST)


def _passes(epochs: Column, *, from_the_start: bool) -> tuple[int | None, int | None]:
    """The steps of the last whole pass, and how many of the current one were made."""
    if not len(epochs) or not measured(epochs).all():
        return None, None
    now = int(epochs[-1])
    seen_whole = (epochs == now - 2).any() or (now == 1 and from_the_start)
    return int(np.sum(epochs == now - 1)) if seen_whole else None, int(np.sum(epochs == now))
