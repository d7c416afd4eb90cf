"""A training that no longer gets better ends in good order, and its best checkpoint is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from holdfast_run import typed
from watched_training import HOLDFAST, environment

from holdfast.checkpoints.manifest import list_checkpoints
from holdfast.checkpoints.write import best_checkpoint
from holdfast.signals.run_folder import RunFolder

VICTIM = Path(__file__).parents[1] / "victims/learns_no_more.py"


def test_patience_stops_an_unchanged_script_and_keeps_its_best(tmp_path: Path) -> None:
    command = [*HOLDFAST, "run", "--name", "run", "--policy", "heal", "--patience", "8", "--", sys.executable, str(VICTIM)]
    done = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "went on to the end" not in done.stdout
    assert "has not improved for 8 evaluations" in done.stderr
    run = RunFolder.open(tmp_path / "runs/run")
    stops = [entry for entry in run.journal if entry["kind"] == "action" and entry["action"] == "stop"]
    assert [entry["state"] for entry in stops] == ["posted", "done"]
    best = best_checkpoint(run.path / "checkpoints")
    assert best is not None and best in list_checkpoints(run.path / "checkpoints")


def test_patience_without_a_policy_that_may_stop_is_refused(tmp_path: Path) -> None:
    done = typed("run", "--patience", "8", "true", folder=tmp_path)
    assert done.returncode == 2 and "--policy heal" in done.stderr
