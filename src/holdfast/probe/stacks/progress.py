"""How far each rank is, from its tables: read from outside, at no cost to the training."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from holdfast.probe.rows import last_rows
from holdfast.probe.stacks.frames import RankProgress
from holdfast.signals.pulse import read_pulse
from holdfast.signals.run_folder import Recording, RunFolder
from holdfast.signals.view import measured

_ROWS = 50


def read_progress(run: RunFolder, before: Sequence[RankProgress] = (), *, apart: float = 0.0) -> list[RankProgress]:
    """The step of each rank now; with `before`, an earlier look, also whether it has moved since."""
    earlier = {progress.rank: progress.step for progress in before}
    newest = {recording.rank: recording for recording in run.recordings()}  # by order: the last training of a rank
    ranks = [_of(rank, progress) for rank, progress in newest.items()]
    return [replace(progress, before=earlier.get(progress.rank), apart=apart) for progress in ranks]


def _of(rank: int, recording: Recording) -> RankProgress:
    rows = last_rows(recording.path, "steps", ("step", "time", "step_seconds"), _ROWS)
    pulse = read_pulse(recording)
    doing, begun = (pulse.phase, pulse.since) if pulse is not None else (None, None)
    if not len(rows["step"]):
        return RankProgress(rank=rank, doing=doing, begun=begun)
    seconds = rows["step_seconds"][measured(rows["step_seconds"])]
    return RankProgress(
        rank=rank,
        step=int(rows["step"][-1]),
        seconds=max(0.0, time.time() - float(rows["time"][-1])),
        usual=float(np.median(seconds)) if len(seconds) else None,
        doing=doing,
        begun=begun,
    )
