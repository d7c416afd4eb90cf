"""Holdfast's own runs as curves: the tables of the first rank, live or finished or killed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.probe.follow import Follower
from holdfast.probe.rows import Column
from holdfast.signals.curves import Curve, Curves, Floats, Steps
from holdfast.signals.metric_direction import better, metric_name
from holdfast.signals.run_folder import Recording, RunFolder
from holdfast.signals.view import measured

_POINTS = 400  # of a curve of steps: a longer run is cut into as many blocks
_STEPS = {
    "loss": ("loss", "lower"),
    "lr": ("lr", None),
    "grad_norm": ("norm", None),
    "update_ratio": ("other", None),
    "weight_norm": ("other", None),
    "step_seconds": ("seconds", None),
    "data_seconds": ("data_seconds", None),
    "host_rss": ("memory", None),
    "gpu_allocated": ("memory", None),
}
_EVALUATIONS = ("step", "epoch", "split", "name", "value")
_ALL = 1 << 40


def read_run(run: RunFolder) -> Curves:
    """The curves of a run's first training, over all attempts at it; empty ones if it has not begun."""
    attempts = _attempts(run.recordings())
    if not attempts:
        return Curves(run.name, (), source="holdfast", made_steps=0)
    rows = _until_resumed(attempts, "steps", ("step", "epoch", "backwards", *_STEPS))
    curves = (*_of_evaluations(_until_resumed(attempts, "evaluations", _EVALUATIONS, made=1)), *_of_steps(rows))
    made = int(rows["step"].max()) + 1 if len(rows["step"]) else 0  # they are counted from 0
    return Curves(run.name, curves, source="holdfast", made_steps=made)


def _attempts(recordings: Sequence[Recording]) -> list[tuple[Recording, int]]:
    """The first training of a run and the later processes that resume it or start it again, each with its first step."""
    attempts: list[tuple[Recording, int]] = []
    end = -1
    for recording in (recording for recording in recordings if recording.rank == recordings[0].rank):
        steps = Follower(recording.path, "steps", ("step",)).new_rows(_ALL)["step"]
        first = int(steps[0]) if len(steps) else end + 1
        if not attempts or (_is_later_attempt(recording, attempts[-1][0], first) and first <= end + 1):
            attempts.append((recording, first))
            end = int(steps[-1]) if len(steps) else end
    return attempts


def _is_later_attempt(recording: Recording, before: Recording, first: int) -> bool:
    """Whether a restart made it; a process that continues where another one was is one of torchrun's own restarts."""
    now, then = recording.info(), before.info()
    if now.get("checkpoints") != then.get("checkpoints"):  # another of several trainings that the script begins
        return False
    again = int(now.get("attempt") or 1) > int(then.get("attempt") or 1)
    return now.get("pid") != then.get("pid") and (again or first > 0)


def _until_resumed(attempts: list[tuple[Recording, int]], table: str, columns: Sequence[str], made: int = 0) -> dict[str, Column]:
    """A table over all attempts, without what a later one did again; `made`: a row of step 5 is of the state after 5 steps."""
    parts = []
    for recording, _ in attempts:
        later = [first for other, first in attempts if other.part > recording.part]
        rows = Follower(recording.path, table, columns).new_rows(_ALL)
        kept = rows["step"] < min(later) + made if later else slice(None)
        parts.append({name: values[kept] for name, values in rows.items()})
    return {name: np.concatenate([rows[name] for rows in parts]) for name in columns}


def _of_steps(rows: dict[str, Column]) -> list[Curve]:
    rows["loss"] = of_equal_sums(rows["loss"], rows["backwards"])
    curves = []
    for name, (role, way) in _STEPS.items():
        has_value = measured(rows[name])
        if has_value.any():
            steps, values = in_blocks(rows["step"][has_value].astype(np.int64), rows[name][has_value].astype(np.float64))
            curves.append(Curve(name, steps, values, role=role, split="train", better=way))
    return curves


def _of_evaluations(rows: dict[str, Column]) -> list[Curve]:
    curves = []
    for split, name in dict.fromkeys(zip(map(str, rows["split"]), map(str, rows["name"]), strict=True)):
        mine = (rows["split"] == split) & (rows["name"] == name)
        steps, values = rows["step"][mine].astype(np.int64), rows["value"][mine].astype(np.float64)
        way = better(name)
        role = "loss" if "loss" in name.lower() else "metric"
        if split == "train" and role == "loss":
            continue  # that of the steps says it better
        epochs = rows["epoch"][mine].astype(np.float64) if measured(rows["epoch"][mine]).all() else None
        curves.append(Curve(metric_name(split, name), steps, values, role=role, split=split, better=way, epochs=epochs))
    return curves


def of_equal_sums(loss: Floats, backwards: Steps) -> Floats:
    """Summed losses, each as of the usual number of backward calls: a script may accumulate over more of them as it goes on."""
    counts = np.where(backwards > 0, backwards, 1)
    return loss * (np.median(counts) / counts) if len(counts) else loss


def in_blocks(steps: Steps, values: Floats, *, points: int = _POINTS) -> tuple[Steps, Floats]:
    """A long curve as the medians of blocks; a block that holds a number that is not finite is not finite."""
    size = -(-len(values) // points)
    if size <= 1:
        return steps, values
    blocks = len(values) // size
    shaped = values[: blocks * size].reshape(blocks, size)
    with np.errstate(invalid="ignore"):
        medians = np.where(np.isfinite(shaped).all(axis=1), np.median(shaped, axis=1), np.nan)
    return steps[size - 1 : blocks * size : size], medians
