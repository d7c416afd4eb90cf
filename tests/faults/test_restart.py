"""Under `heal` a command that died goes on from its last clean checkpoint, and ends as it would have without the fault."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from holdfast_run import PYTHON, VICTIMS, environment, run

FALTERS = str(VICTIMS / "falters.py")
SOON = {"HOLDFAST_BACK_OFF": "0.1"}
RESUME = ("--resume-args", "--resume {checkpoint}")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The last line of the same training without a fault and without Holdfast."""
    folder = tmp_path_factory.mktemp("undisturbed")
    words = [PYTHON, FALTERS, "none", "0", "--pause", "0"]
    return subprocess.run(words, cwd=folder, env=environment(folder), capture_output=True, text=True, check=True).stdout


def restarts_of(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [row for row in rows if row.get("action") == "restart"]


def test_a_script_that_resumes_ends_with_the_same_weights(tmp_path: Path, undisturbed: str) -> None:
    done = run(tmp_path, "--policy", "heal", "--name", "a", *RESUME, PYTHON, FALTERS, "kill", "70", "--own", env=SOON)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] + "\n" == undisturbed
    (row,) = restarts_of(tmp_path / "runs/a")
    assert (row["because"], row["state"], row["checkpoint_step"]) == ("process-died", "done", 60)
    assert row["checkpoint"] == str(tmp_path / "last.pt")


def test_a_script_that_knows_nothing_of_resuming_is_brought_to_where_it_was(tmp_path: Path, undisturbed: str) -> None:
    words = ("--policy", "heal", "--name", "a", PYTHON, FALTERS, "raise", "100", "--pause", "0.02")
    done = run(tmp_path, *words, env={**SOON, "HOLDFAST_SAVE_EVERY": "0.5"})
    assert done.returncode == 0 and done.stdout.splitlines()[-1] + "\n" == undisturbed
    assert re.search(r"holdfast: caught up at step \d+", done.stderr)
    (row,) = restarts_of(tmp_path / "runs/a")
    assert row["because"] == "script-error" and row["checkpoint_step"] > 0


@pytest.mark.slow  # tests/unit/recovery/test_restart.py decides the same
def test_a_fault_that_comes_again_at_the_same_step_ends_the_restarts(tmp_path: Path) -> None:
    words = ("--policy", "heal", "--name", "a", "--restarts", "9", *RESUME, PYTHON, FALTERS, "raise", "50", "--own", "--always")
    done = run(tmp_path, *words, env=SOON)
    assert done.returncode == 1
    rows = restarts_of(tmp_path / "runs/a")
    assert [row["state"] for row in rows] == ["done", "done", "refused"]
    assert "not started again: 3 attempts ended at step 50" in done.stderr


def test_a_template_that_names_what_is_not_known_is_refused_in_words(tmp_path: Path) -> None:
    done = run(tmp_path, "--resume-args", "--from {file}", PYTHON, "-c", "print(1)")
    assert done.returncode == 2 and "{file}" in done.stderr and "{checkpoint}" in done.stderr and done.stdout == ""


def test_ranks_of_which_one_stays_away_are_all_brought_to_the_same_checkpoint(tmp_path: Path) -> None:
    launch = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    words = ("--policy", "heal", "--name", "a", "--hang-after", "3", *RESUME)
    done = run(tmp_path, *words, *launch, str(VICTIMS / "ranks_that_falter.py"), "25", env=SOON, timeout=180)
    assert done.returncode == 0
    assert sorted(re.findall(r"rank \d begins at \d+", done.stdout)) == [
        *("rank 0 begins at 0", "rank 0 begins at 20", "rank 1 begins at 0", "rank 1 begins at 20")
    ]
    ends = dict(re.findall(r"rank (\d) ends at 60 with (\S+)", done.stdout))
    assert set(ends) == {"0", "1"} and ends["0"] == ends["1"]
    (row,) = restarts_of(tmp_path / "runs/a")
    assert row["because"] == "collective-stall"
