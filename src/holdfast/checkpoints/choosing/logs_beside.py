"""The history of a run from the logs that lie beside its checkpoints: Lightning's metrics.csv, Ultralytics' results.csv, the
trainer_state.json of Hugging Face, or any table of that kind with a column of steps or epochs.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.checkpoints.history import Better, History, Points, Series, Unit, is_held_out, lineage

_LIGHTNING = "metrics.csv"
TABLES = (_LIGHTNING, "results.csv", "log.csv", "history.csv")
MARKS = (*TABLES, "run.json", "trainer_state.json", "hparams.yaml", "args.yaml")  # a folder that holds one is that of a run
CHECKPOINT_FOLDERS = ("checkpoints", "checkpoint", "ckpts", "ckpt", "weights", "models", "snapshots")
_STEPS = ("step", "global_step", "steps", "iteration", "iter")
_EPOCHS = ("epoch", "epochs")
_LOSSES = ("loss", "train_loss", "train/loss", "train_loss_step", "train/loss_step", "training_loss", "train_loss_epoch")
_RATE = re.compile(r"(lr|learning_rate)\b|lr[-/_]")
_PACE = re.compile(r"runtime|per_second|time|seconds|grad_norm|flos")
_LARGEST = 64 << 20  # bytes of a log that is read

Row = Mapping[str, float]


def run_folder_of(path: Path, top: Path) -> Path:
    """The folder of the run that a checkpoint belongs to: the nearest one above it that is marked as a run's, else `top`."""
    if (path / "trainer_state.json").is_file() and path != top:
        return path.parent
    for folder in path.parents if path != top else ():
        if any((folder / mark).is_file() for mark in MARKS):
            return folder
        if folder == top:
            break
    above = top.parent if top.name.lower() in CHECKPOINT_FOLDERS else top
    return above if any((above / mark).is_file() for mark in MARKS) else top


def read_history(folder: Path, checkpoints: Iterable[Path], better: Better) -> History | None:
    """What the logs in a run's folder, or in its checkpoints, tell; None if there are none."""
    for name in TABLES:
        rows = read_table(folder / name)
        if rows and (found := history_of(rows, better)):
            told = _after_the_step(found) if name == _LIGHTNING and found.unit == "step" else found
            return replace(told, sources=(str(folder / name),))
    return _from_trainer_states([folder, *checkpoints], better)


def _after_the_step(history: History) -> History:
    """Lightning writes an evaluation down under the number of the last step; its checkpoints count the steps that were made."""
    moved = tuple(replace(one, points=tuple((at + 1, value) for at, value in one.points)) for one in history.metrics)
    return replace(history, metrics=moved, last=None if history.last is None else history.last + 1)


def read_table(path: Path) -> list[dict[str, float]]:
    """The rows of a CSV file as numbers by column; cells that are empty or no number are left out.

    So is a last line without an end: the writer was stopped in the middle of it, and its last number may be cut.
    """
    try:
        if path.stat().st_size > _LARGEST:
            return []
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    try:
        lines = list(csv.reader(text[: text.rfind("\n") + 1].splitlines()))
    except csv.Error:
        return []
    names = [name.strip() for name in lines[0]] if lines else []
    cells = (zip(names, line, strict=False) for line in lines[1:] if len(line) <= len(names))
    return [{name: value for name, cell in row if (value := _number(cell)) is not None} for row in cells]


def history_of(rows: Sequence[Row], better: Better) -> History | None:
    """A history from rows with a column of steps or epochs; None if there is no such column."""
    steps, epochs = _column_of(rows, _STEPS), _column_of(rows, _EPOCHS)
    counter, unit = (steps, "step") if steps else (epochs, "epoch")
    if counter is None:
        return None
    placed = [(int(row[counter]), row) for row in rows if _is_count(row.get(counter))]
    if unit == "epoch" and min(at for at, _ in placed) == 1 and any(name.startswith("metrics/") for name in placed[0][1]):
        placed = [(at - 1, row) for at, row in placed]  # Ultralytics counts epochs from one here, and from zero in checkpoints
    columns = list(dict.fromkeys(name for _, row in placed for name in row if name not in (steps, epochs)))
    curves = {name: lineage((at, row[name]) for at, row in placed if name in row) for name in columns}
    made: Unit = "step" if unit == "step" else "epoch"
    return History(
        unit=made,
        metrics=tuple(_metrics(curves, better)),
        losses=_losses(curves),
        rates=next((_jumps(points) for name, points in curves.items() if _RATE.match(name.lower())), ()),
        epochs=_epochs(placed, epochs) if steps else (),
        last=placed[-1][0] if placed else None,
    )


def _from_trainer_states(folders: Iterable[Path], better: Better) -> History | None:
    """The newest trainer_state.json that can be read: it tells of everything before it too."""
    states = [(state, path) for folder in folders if (state := _state(path := folder / "trainer_state.json"))]
    for state, path in sorted(states, key=lambda one: -_whole(one[0].get("global_step"))):
        rows = [
            {str(k): float(v) for k, v in row.items() if _is_number(v)} for row in state["log_history"] if isinstance(row, dict)
        ]
        found = history_of(rows, better)
        if found is not None:
            return replace(_with_best(found, state), sources=(str(path),))
    return None


def _with_best(history: History, state: Mapping[str, Any]) -> History:
    """The metric whose value the trainer calls the best, and which way is better if its name does not say."""
    best = state.get("best_metric")
    if not _is_number(best):
        return history
    for series in history.metrics:
        values = [value for _, value in series.points if math.isfinite(value)]
        if best in values:
            lower = series.lower_is_better if series.lower_is_better is not None else best == min(values) != max(values)
            told = replace(series, lower_is_better=lower)
            others = tuple(told if one is series else one for one in history.metrics)
            return replace(history, metrics=others, monitored=series.name)
    return history


def _metrics(curves: Mapping[str, Points], better: Better) -> list[Series]:
    """The columns that judge the model: those of held-out data; where there are none, what is known to be better one way."""
    named = {name: points for name, points in curves.items() if not _PACE.search(name) and not _RATE.match(name.lower())}
    held_out = [name for name in named if is_held_out(name)]
    chosen = held_out or [name for name in named if better(name) is not None and name not in _LOSSES and "train" not in name]
    ways = {name: better(name) for name in chosen}
    return [Series(name, named[name], None if ways[name] is None else ways[name] == "lower") for name in chosen]


def _losses(curves: Mapping[str, Points]) -> Points:
    """The training loss; where it comes in parts (train/box_loss, train/cls_loss), their sum."""
    for name in _LOSSES:
        if name in curves:
            return curves[name]
    parts = [dict(points) for name, points in curves.items() if name.startswith("train") and "loss" in name]
    common = sorted(set.intersection(*(set(part) for part in parts))) if parts else []
    return tuple((step, sum(part[step] for part in parts)) for step in common)


def _epochs(placed: Sequence[tuple[int, Row]], column: str | None) -> tuple[tuple[int, int], ...]:
    """Each whole epoch and its last step; none where epochs are counted in fractions."""
    pairs = [(row[column], at) for at, row in placed if column is not None and column in row]
    if any(epoch != int(epoch) for epoch, _ in pairs if math.isfinite(epoch)):
        return ()
    last: dict[int, int] = {}
    for epoch, at in pairs:
        if math.isfinite(epoch):
            last[int(epoch)] = at
    return tuple(sorted(last.items()))


def _jumps(points: Points) -> Points:
    """Only the points at which the value changed."""
    return tuple(point for index, point in enumerate(points) if index == 0 or point[1] != points[index - 1][1])


def _column_of(rows: Sequence[Row], names: Sequence[str]) -> str | None:
    return next((name for name in names if any(_is_count(row.get(name)) for row in rows)), None)


def _state(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.stat().st_size <= _LARGEST else None
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and isinstance(content.get("log_history"), list) else None


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value) and value >= 0


def _whole(value: Any) -> int:
    return int(value) if _is_count(value) else -1
