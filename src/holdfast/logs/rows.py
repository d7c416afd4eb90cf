"""From rows of a log to curves: runs separated, steps ordered, partial losses summed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from holdfast.logs.columns import Column
from holdfast.logs.roles import EPOCH_NAMES, STEP_NAMES, Role, is_total, role_of, words_of
from holdfast.signals.curves import Curve, Curves

Row = Mapping[str, float]
_SEVERAL_LOSSES = 2
_SUMS_UP = ({"95"}, {"fitness"}, {"map", "map50"}, {"iou", "miou", "dice"}, {"accuracy", "acc", "f1"})
_HEAD = 20_000  # rows from which the meaning of the columns is read
_VALUES = 12_000_000  # of all columns together
_RUNS, _COLUMNS = 1000, 5000  # more are no log of trainings


def curves_of(
    rows: Iterable[Row],
    *,
    name: str,
    source: str,
    roles: Mapping[str, Role] | None = None,
    planned_steps: int | None = None,
    notes: tuple[str, ...] = (),
) -> list[Curves]:
    """The runs in some rows, of any number; `roles` says what a column is where its name does not."""
    rows = iter(rows)
    head = list(itertools.islice(rows, _HEAD))
    runs = list(itertools.islice(_runs(head, rows), _RUNS))
    titles = [name if len(runs) == 1 else f"{name} #{number}" for number in range(1, len(runs) + 1)]
    return [
        run_of(columns, name=title, source=source, roles=roles, planned_steps=planned_steps, notes=notes)
        for title, columns in zip(titles, runs, strict=True)
    ]


def run_of(
    columns: Mapping[str, Column],
    *,
    name: str,
    source: str,
    roles: Mapping[str, Role] | None = None,
    planned_steps: int | None = None,
    notes: tuple[str, ...] = (),
) -> Curves:
    """One run of columns: what each stands for, and which speak first."""
    curves = [column.curve(title, (roles or {}).get(title) or role_of(title)) for title, column in columns.items()]
    thinned = max((column.thinned for column in columns.values()), default=1)
    all_notes = (*notes, f"long columns are downsampled: about one point in {thinned}") if thinned > 1 else notes
    ordered = _in_order(_measured(curves))
    return Curves(name, tuple(ordered), source=source, planned_steps=planned_steps, notes=all_notes)


def _runs(head: Sequence[Row], rest: Iterator[Row]) -> Iterator[dict[str, Column]]:
    """Tell several runs in one file apart: a step that starts again from the beginning begins another run.

    A run that was resumed goes back less far: its later rows take the place of those that it went back over.
    """
    step_name, epoch_name = position_name(head), _named(head, EPOCH_NAMES)
    counted = step_name is None or any(row.get(step_name, 0.0) % 1 > 0 for row in head)  # parts of an epoch are no steps
    columns: dict[str, Column] = {}
    number, first, highest = 0, math.inf, -math.inf
    for row in itertools.chain(head, rest):
        at = row.get(step_name) if step_name is not None else None
        if at is not None:
            if at < highest and at <= first and number > 1:
                yield columns
                columns, number, first, highest = {}, 0, math.inf, -math.inf
            first, highest = min(first, at), max(highest, at)
        step = number if counted or at is None or not math.isfinite(at) else int(at)
        _add(columns, row, step, (step_name, epoch_name))
        number += 1
        if number % _HEAD == 0:
            _within_bounds(columns)
    if columns:
        yield columns


def _add(columns: dict[str, Column], row: Row, step: int, positions: tuple[str | None, str | None]) -> None:
    epoch = row.get(positions[1], math.nan) if positions[1] is not None else math.nan
    for name, value in row.items():
        if name not in positions:
            column = columns.get(name)
            if column is None and len(columns) < _COLUMNS:
                column = columns[name] = Column()
            if column is not None:
                column.add(step, value, epoch)


def _within_bounds(columns: Mapping[str, Column]) -> None:
    while sum(map(len, columns.values())) > _VALUES:
        max(columns.values(), key=len).thin()


def position_name(rows: Sequence[Row]) -> str | None:
    """The column that says how far the run is: steps if most rows have them, else epochs."""
    names = {name for row in rows for name in row}
    lower = {name.strip().lower(): name for name in names}
    for wanted in (*STEP_NAMES, *EPOCH_NAMES):
        if wanted in lower and sum(lower[wanted] in row for row in rows) * 2 > len(rows):
            return lower[wanted]
    return None


def _named(rows: Sequence[Row], wanted: tuple[str, ...]) -> str | None:
    names = {name.strip().lower(): name for row in rows for name in row}
    return next((names[name] for name in wanted if name in names), None)


def _measured(curves: list[Curve]) -> list[Curve]:
    """Without validation columns that were never measured: losses that are zero throughout, and metrics beside no other loss."""

    def is_zero(curve: Curve) -> bool:
        return curve.role in ("loss", "metric") and curve.split != "train" and len(curve) > 1 and not curve.values.any()

    has_loss = any(curve.role == "loss" and curve.split != "train" and curve.values.any() for curve in curves)
    return [curve for curve in curves if not is_zero(curve) or (has_loss and curve.role == "metric")]


def _in_order(curves: list[Curve]) -> list[Curve]:
    """The curves that represent their role first: a loss that is the whole one, or the sum of its parts."""
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
    tokens = set(words_of(curve.name))
    place = next((number for number, some in enumerate(_SUMS_UP) if tokens & some), 6)
    return 8 if tokens & {"precision", "recall"} else place
