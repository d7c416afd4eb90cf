"""Two ranks, one of which meets a bad batch: both skip the same update, and a healthy step costs no extra collective."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from watched_training import HOLDFAST, WarmPython, environment

from holdfast.signals.run_folder import RunFolder

VICTIM = Path(__file__).parents[1] / "victims/ranks_with_a_bad_batch.py"
DIVERGING = VICTIM.with_name("ranks_that_diverge.py")
RANKS = str(Path(__file__).with_name("forked_ranks.py"))
BAD, STEPS = 10, 20


def train(warm: WarmPython, folder: Path, kind: str, bad: int, **env: str) -> list[dict[str, Any]]:
    """Both ranks to their end; a negative step leaves its batch out."""
    folder.mkdir(exist_ok=True)
    warm.run(folder, RANKS, str(VICTIM), kind, str(bad), str(folder), **env)
    return ends_in(folder)


def ends_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize(("kind", "collectives_per_step"), [("ddp", 0), ("sharded", 1), ("tensor", 1)])
def test_ranks_skip_the_same_update(kind: str, collectives_per_step: int, warm: WarmPython, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "runs", "run")
    without = train(warm, tmp_path / "without", kind, -BAD)
    guarded = train(warm, tmp_path, kind, BAD, HOLDFAST_RUN=str(run.path), HOLDFAST_POLICY="guard", HOLDFAST_DEBUG="raise")
    for rank in (0, 1):
        assert guarded[rank]["skipped"] == [BAD]
        assert guarded[rank]["hash"] == without[rank]["hash"]
        own = without[rank]["collectives"] / (STEPS - 1) * STEPS  # what the training itself does
        comparing = 3 if kind != "ddp" else 0  # the victim compares all sharded parameters when none has moved
        assert guarded[rank]["collectives"] <= own + comparing + STEPS * collectives_per_step + 1
    actions = [entry for entry in run.journal if entry["kind"] == "action"]
    assert sorted((entry["rank"], entry["step"]) for entry in actions) == [(0, BAD), (1, BAD)]


def test_ranks_roll_back_at_the_same_step(tmp_path: Path) -> None:
    command = [*HOLDFAST, "run", "--name", "run", "--policy", "heal", "--", sys.executable, RANKS, str(DIVERGING), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    ends = ends_in(tmp_path)
    journal = list(RunFolder.open(tmp_path / "runs/run").journal)
    answers = [e for e in journal if e["kind"] == "action" and e["action"] == "roll-back" and e["state"] != "posted"]
    assert {e["state"] for e in answers} == {"done"}, answers
    assert {e["rank"] for e in answers} == {0, 1}
    first = [e for e in answers if e["number"] == answers[0]["number"]]
    assert len({e["at"] for e in first}) == 1 and len({e["detail"] for e in first}) == 1
    assert ends[0]["hash"] == ends[1]["hash"]
    assert ends[0]["loss"] < 0.5
