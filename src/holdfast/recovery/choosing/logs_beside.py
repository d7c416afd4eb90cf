"""The history of a run from the logs beside its checkpoints: whatever `diagnose` reads, judged as `diagnose` judges it."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from holdfast.detectors.curves.order import look_at
from holdfast.detectors.finding import Finding
from holdfast.diagnosis.curve_sentences import sentence
from holdfast.errors import HoldfastError
from holdfast.logs.folders import kind_of
from holdfast.logs.open import SUFFIXES, open_log
from holdfast.logs.search import find_logs, is_log
from holdfast.recovery.choosing.history import History, Noted, Points, Series, Unit, is_held_out
from holdfast.signals.curves import HELD_OUT, Curve, Curves

_LIGHTNING, _STATE = "metrics.csv", "trainer_state.json"
# A folder that holds one of these is that of a run.
MARKS = (_LIGHTNING, "results.csv", "log.csv", "history.csv", "run.json", _STATE, "hparams.yaml", "args.yaml")
CHECKPOINT_FOLDERS = ("checkpoints", "checkpoint", "ckpts", "ckpt", "weights", "models", "snapshots")
_LOG_FOLDERS = ("logs", "log", "tensorboard", "tb", "tb_logs", "wandb", "mlruns", "events")
_PACE = re.compile(r"per_second|runtime|flos|(^|[_/])time")
_LOGS, _DEEPEST = 16, 3  # that are opened, and folders below the run's that they lie in
NOTHING: Mapping[Unit, int] = MappingProxyType({})
_REACH = 0.5  # of the newest checkpoint's position: a log that ends before counts something else


def run_folder_of(path: Path, top: Path) -> Path:
    """The folder of the run that a checkpoint belongs to: the nearest one above it that is marked as a run's, else `top`."""
    if (path / _STATE).is_file() and path != top:
        return path.parent
    for folder in path.parents if path != top else ():
        if any((folder / mark).is_file() for mark in MARKS):
            return folder
        if folder == top:
            break
    above = top.parent if top.name.lower() in CHECKPOINT_FOLDERS else top
    return above if any((above / mark).is_file() for mark in MARKS) or _holds_log(above) else top


def _holds_log(folder: Path) -> bool:
    """Whether logs lie in a folder, or in one below it that is named for them."""
    for place in (folder, *(folder / name for name in _LOG_FOLDERS)):
        with contextlib.suppress(OSError):
            names = [entry.name for entry in place.iterdir()]
            if kind_of(place) is not None or any(is_log(place, name) for name in names if name.lower().endswith(SUFFIXES)):
                return True
    return False


def read_history(folder: Path, checkpoints: Sequence[Path], *, newest: Mapping[Unit, int] = NOTHING) -> History | None:
    """What the logs in a run's folder, or in its checkpoints, tell; None if there are none.

    Of several the one with evaluations, then the longest. `newest` is the highest step and epoch of a checkpoint, as far as they
    tell them: a log that counts otherwise, or ends long before, places none of them.
    """
    histories = [history for log in _logs(folder, checkpoints) if (history := _read(log)) is not None]
    return max((history for history in histories if _places(history, newest)), key=_worth, default=None)


def _places(history: History, newest: Mapping[Unit, int]) -> bool:
    """Whether the checkpoints lie within what was logged."""
    if history.unit in newest or not newest:
        return (history.last or 0) >= _REACH * newest.get(history.unit, 0)
    return history.unit == "step" and bool(history.epochs)


def _worth(history: History) -> tuple[bool, int, int]:
    points = max((len(series.points) for series in history.metrics), default=0)
    return points > 0, history.last or 0, points + len(history.losses)


def _logs(folder: Path, checkpoints: Iterable[Path]) -> list[Path]:
    """The logs in the folder of a run, the nearest first, and the Trainer's history in its checkpoints, the newest first."""
    near = (log for log in find_logs(folder) if len(log.relative_to(folder).parts) <= _DEEPEST)
    logs = sorted(islice(near, _LOGS), key=lambda log: len(log.parts))
    states = [path / _STATE for path in reversed(list(checkpoints)) if (path / _STATE).is_file()]
    return list(dict.fromkeys((*logs, *states[:_LOGS])))


def _read(log: Path) -> History | None:
    try:
        history = history_of(max(open_log(log), key=lambda run: run.steps))
        if history is not None and log.name == _STATE:
            history = _with_best(history, json.loads(log.read_bytes()))
    except (HoldfastError, OSError, ValueError, RecursionError):  # of a state that was cut short an older one tells more
        return None
    if history is not None and (log.name == _LIGHTNING or (log / "hparams.yaml").is_file()):
        history = _after_the_step(history)
    return replace(history, sources=(str(log),)) if history is not None else None


def history_of(curves: Curves) -> History | None:
    """A history from the curves of a log, with what the detectors find in them; None if nothing in it is counted."""
    measured = [curve for curve in curves.curves if len(curve)]
    if not measured:
        return None
    unit: Unit = "epoch" if all(_counts_epochs(curve) for curve in measured) else "step"
    shift = -1 if unit == "epoch" and _is_ultralytics(measured) else 0  # counted from one in the log, from zero in checkpoints
    rates = curves.of("lr")
    history = History(
        unit=unit,
        metrics=tuple(map(_series, _metrics(measured))),
        losses=_points(curves.train_loss) if curves.train_loss is not None else (),
        rates=_jumps(_points(rates[0])) if rates else (),
        findings=tuple(_noted(finding, curves) for finding in look_at(curves)),
        judged=True,
        epochs=_epochs(measured) if unit == "step" else (),
        last=curves.steps,
    )
    return history.later(shift) if shift else history


def _noted(finding: Finding, curves: Curves) -> Noted:
    """A finding; what was saved after the last point before its onset may be from within the trouble already."""
    curve = next((candidate for candidate in curves.curves if candidate.name == finding.series), None)
    before = curve.steps[curve.steps < finding.onset] if curve is not None else np.array([], np.int64)
    is_of_metric = finding.code.startswith("metric-")
    onset = int(before[-1]) if len(before) and not is_of_metric else finding.onset
    text = f"{finding.code}: {sentence(finding, curves)}"
    return Noted(finding.step, finding.code, finding.severity, onset, (finding.series or "") if is_of_metric else "", text)


def _metrics(curves: Sequence[Curve]) -> list[Curve]:
    """The curves that judge the model: those of held-out data, its loss too; where there are none, those of a known direction."""
    judging = [curve for curve in curves if curve.role in ("loss", "metric", "other") and not _PACE.search(curve.name.lower())]
    held_out = [series for series in judging if series.split in HELD_OUT or is_held_out(series.name)]
    return held_out or [series for series in judging if series.role == "metric"]


def _counts_epochs(curve: Curve) -> bool:
    return curve.epochs is not None and bool(np.array_equal(curve.epochs, curve.steps))


def _is_ultralytics(curves: Sequence[Curve]) -> bool:
    return min(int(curve.steps[0]) for curve in curves) == 1 and any(curve.name.startswith("metrics/") for curve in curves)


def _after_the_step(history: History) -> History:
    """Lightning writes an evaluation down under the number of the last step; its checkpoints count the steps that were made."""
    if history.unit == "epoch":
        return history
    moved = tuple(replace(metric, points=tuple((at + 1, value) for at, value in metric.points)) for metric in history.metrics)
    return replace(history, metrics=moved, last=None if history.last is None else history.last + 1)


def _with_best(history: History, state: Any) -> History:
    """The metric whose value the Trainer calls the best, and which way is better if its name does not say."""
    best = state.get("best_metric") if isinstance(state, dict) else None
    for series in history.metrics:
        values = [value for _, value in series.points]
        if isinstance(best, (int, float)) and best in values:
            lower = series.lower_is_better if series.lower_is_better is not None else best == min(values) != max(values)
            metrics = tuple(replace(metric, lower_is_better=lower) if metric is series else metric for metric in history.metrics)
            return replace(history, metrics=metrics, monitored=series.name)
    return history


def _series(curve: Curve) -> Series:
    return Series(curve.name, _points(curve), None if curve.better is None else curve.better == "lower")


def _points(curve: Curve) -> Points:
    return tuple(zip(curve.steps.tolist(), curve.values.tolist(), strict=True))


def _epochs(curves: Sequence[Curve]) -> tuple[tuple[int, int], ...]:
    """Each whole epoch and its last step; none where epochs are counted in fractions."""
    last: dict[int, int] = {}
    for curve in curves:
        for epoch, step in zip(curve.epochs, curve.steps, strict=True) if curve.epochs is not None else ():
            if not np.isfinite(epoch):
                continue
            if epoch != int(epoch):
                return ()
            last[int(epoch)] = max(int(step), last.get(int(epoch), 0))
    return tuple(sorted(last.items()))


def _jumps(points: Points) -> Points:
    """Only the points at which the value changed."""
    return tuple(point for index, point in enumerate(points) if index == 0 or point[1] != points[index - 1][1])
