"""What a run folder tells of a drill."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.drills.outcome import read_outcome
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES


@pytest.mark.parametrize(("restart", "reached"), [({"checkpoint_step": 20}, 20), ({"checkpoint_step": None}, 0)])
def test_a_run_that_was_restarted_at_its_very_end_has_made_all_its_steps(
    tmp_path: Path, restart: dict[str, int | None], reached: int
) -> None:
    run = RunFolder.create(tmp_path, "a")
    recorder = Recorder.start(run, 0)
    for step in range(20):
        recorder.table("steps").append(
            [{"step": step}.get(column.name, column.kind.missing) for column in TABLES["steps"].columns]
        )
    recorder.close()
    run.journal.write("action", action="restart", state="done", step=19, because="disk-full", settings={}, **restart)
    Recorder.start(run, 0).close()
    assert read_outcome(run).reached == reached
