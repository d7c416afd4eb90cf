"""A run that is read to its end is judged with all of its rows."""

from __future__ import annotations

import time
from pathlib import Path

from holdfast.diagnosis.run_follower import RunFollower
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES

STEPS = 188  # in each of two epochs, with an evaluation behind it


def test_an_evaluation_behind_the_last_step_counts(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "a")
    recorder = Recorder.start(run, 0)
    code = recorder.strings.code

    def add(table: str, **values: float | int) -> None:
        columns = TABLES[table].columns
        recorder.table(table).append([values.get(column.name, column.kind.missing) for column in columns])

    for step in range(2 * STEPS):
        add("steps", step=step, time=time.time(), loss=1.0 / (1 + step), skipped=0, step_seconds=0.01, epoch=step // STEPS)
    for step, split, deviation in (
        (1, "train", 1.0),
        (11, "train", 1.1),
        (21, "train", 1.0),
        (188, "val", 60.0),
        (376, "val", 60.0),
    ):
        source = int(split == "val")
        add("inputs", step=step, split=code(split), source=source, field=code("0"), mean=0.5, deviation=deviation, samples=32,
            distinct=32, known=0)  # fmt: skip
    recorder.close()
    found = [finding.code for finding in RunFollower(run.recordings()[0]).end()]
    assert "preprocessing-mismatch" in found
