"""Rows of a log, as readers give them, become curves: runs told apart, steps put in order, losses of several parts added up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from holdfast.logs.roles import EPOCH_NAMES, STEP_NAMES, Role, is_total, role_of, words_of
from holdfast.signals.curves import Curve, Curves

Row = Mapping[str, float]
_SEVERAL_LOSSES = 2
_SUMS_UP = ({"95"}, {"fitness"}, {"map", "map50"}, {"iou", "miou", "dice"}, {"accuracy", "acc", "f1"})


@dataclass(slots=True)
class _Column:
    steps: list[int] = field(default_factory=list)
    epochs: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


def curves_of(
    rows: Iterable[Row],
    *,
    name: str,
    source: str,
    roles: Mapping[str, Role] | None = None,
    planned_steps: int | None = None,
) -> list[Curves]:
    """The runs in some rows; `roles` says what a column is where its name does not."""
    found = []
    runs = split_runs(list(rows))
    for number, run in enumerate(runs, 1):
        title = name if len(runs) == 1 else f"{name} #{number}"
        curves = _curves(run, roles or {})
        found.append(Curves(title, tuple(curves), source=source, planned_steps=planned_steps))
    return found


def split_runs(rows: list[Row]) -> list[list[Row]]:
    """Tell several runs in one file apart: a step that starts again from the beginning begins another run.

    A run that was resumed goes back less far: its later rows take the place of those that it went back over.
    """
    key = position_name(rows)
    if key is None:
        return [rows] if rows else []
    runs: list[list[Row]] = [[]]
    first, highest = math.inf, -math.inf
    for row in rows:
        at = row.get(key)
        if at is not None:
            if at < highest and at <= first and len(runs[-1]) > 1:
                runs.append([])
                first, highest = math.inf, -math.inf
            first, highest = min(first, at), max(highest, at)
        runs[-1].append(row)
    return [run for run in runs if run]


def position_name(rows: list[Row]) -> str | None:
    """The column that says how far the run is: steps if most rows have them, else epochs."""
    names = {name for row in rows for name in row}
    lower = {name.strip().lower(): name for name in names}
    for wanted in (*STEP_NAMES, *EPOCH_NAMES):
        if wanted in lower and sum(lower[wanted] in row for row in rows) * 2 > len(rows):
            return lower[wanted]
    return None


def _curves(rows: list[Row], roles: Mapping[str, Role]) -> list[Curve]:
    step_name, epoch_name = position_name(rows), _named(rows, EPOCH_NAMES)
    columns: dict[str, _Column] = {}
    counted = step_name is None or any(row.get(step_name, 0.0) % 1 > 0 for row in rows)
    for number, row in enumerate(rows):  # parts of an epoch are no numbers of steps
        at = number if counted or step_name is None else row.get(step_name)
        step = int(at) if at is not None and math.isfinite(at) else number
        epoch = row.get(epoch_name, math.nan) if epoch_name is not None else math.nan
        for name, value in row.items():
            if name not in (step_name, epoch_name):
                column = columns.setdefault(name, _Column())
                column.steps.append(step)
                column.epochs.append(epoch)
                column.values.append(value)
    curves = [_curve(name, column, roles.get(name) or role_of(name)) for name, column in columns.items()]
    return _in_order([curve for curve in curves if not _says_nothing(curve)])


def _named(rows: list[Row], wanted: tuple[str, ...]) -> str | None:
    names = {name.strip().lower(): name for row in rows for name in row}
    return next((names[name] for name in wanted if name in names), None)


def _curve(name: str, column: _Column, role: Role) -> Curve:
    """One value a step: the last one, as a resumed run writes steps again."""
    latest = {step: place for place, step in enumerate(column.steps)}
    order = [latest[step] for step in sorted(latest)]
    values, epochs = np.array(column.values, np.float64)[order], np.array(column.epochs, np.float64)[order]
    return Curve(
        name.strip(),
        np.array(sorted(latest), np.int64),
        values,
        role=role.role,
        split=role.split,
        better=role.better,
        epochs=epochs if np.isfinite(epochs).any() else None,
    )


def _says_nothing(curve: Curve) -> bool:
    """A validation column that is zero throughout was never measured; one that is NaN throughout may have been."""
    return curve.role in ("loss", "metric") and curve.split != "train" and len(curve) > 1 and not curve.values.any()


def _in_order(curves: list[Curve]) -> list[Curve]:
    """The curves that speak for their role first: a loss that is the whole one, or the sum of its parts."""
    totals = [total for split in ("train", "val", "test") if (total := _total(curves, split)) is not None]
    rest = [curve for curve in curves if curve not in totals]
    rest.sort(key=_rank)
    return [*totals, *rest]


def _total(curves: list[Curve], split: str) -> Curve | None:
    losses = [curve for curve in curves if curve.role == "loss" and curve.split == split]
    if not losses:
        return None
    whole = [curve for curve in losses if is_total(curve.name)]
    if whole:  # one for each epoch is calmer than one for each step, if it is long enough to say something
        by_epoch = [curve for curve in whole if "epoch" in words_of(curve.name)]
        return max(by_epoch or whole, key=len)
    parts = [curve for curve in losses if len(curve) == len(losses[0]) and (curve.steps == losses[0].steps).all()]
    if len(parts) < _SEVERAL_LOSSES:
        return losses[0]
    values = np.sum([part.values for part in parts], axis=0)
    name = f"{split}/" + "+".join(part.name.rpartition("/")[2].strip() for part in parts)
    return Curve(name, parts[0].steps, values, role="loss", split=split, better="lower", epochs=parts[0].epochs)


def _rank(curve: Curve) -> int:
    """Metrics first, and of these the one that sums up most: precision and recall each tell half of it."""
    if curve.role != "metric":
        return 9
    words = set(words_of(curve.name))
    place = next((number for number, some in enumerate(_SUMS_UP) if words & some), 6)
    return 8 if words & {"precision", "recall"} else place
