"""A training that hangs is found from outside, with the line that it hangs in. Under `heal` it is ended, whatever it does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from holdfast_run import PYTHON, VICTIMS, findings_of, start, typed, wait_until

from holdfast.supervisor.progress import process_state

FALTERS = str(VICTIMS / "falters.py")


def hangs_of(folder: Path) -> list[dict[str, Any]]:
    return [row for row in findings_of(folder) if row["severity"] == "critical"]


def actions_of(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "action"]


@pytest.fixture(scope="module")
def deaf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A run that hangs under `heal` and ignores SIGTERM. It mostly waits, and does so while other tests run."""
    folder = tmp_path_factory.mktemp("deaf")
    words = ("--policy", "heal", "--name", "a", "--hang-after", "2", "--restarts", "0")
    with start(folder, *words, PYTHON, FALTERS, "hang-deaf", "30") as process:
        yield folder, process
        process.kill()


@pytest.fixture(scope="module")
def hung(deaf: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that hangs under `observe`; it is left as it is."""
    folder = tmp_path_factory.mktemp("hung")
    process = start(folder, "--name", "a", "--hang-after", "2", PYTHON, FALTERS, "hang", "30", "--own")
    try:
        wait_until(lambda: bool(hangs_of(folder / "runs/a")))
        yield folder
        assert process.poll() is None, "observing must not end it"
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=600)
    assert "holdfast: no progress for" in errors and "(holdfast backtrace a)" in errors, "nobody at the terminal was told"


def test_a_hang_is_reported_with_the_line_that_it_hangs_in_and_its_stacks_are_kept(hung: Path) -> None:
    (row,) = hangs_of(hung / "runs/a")
    assert (row["code"], row["step"]) == ("hang", 30)
    assert "falters.py" in row["evidence"]["where"] and row["evidence"]["seconds"] >= row["evidence"]["limit"]
    assert (hung / "runs/a" / row["evidence"]["stacks"]).exists()


def test_ps_and_diagnose_show_the_hang(hung: Path) -> None:
    state = json.loads(typed("ps", "--json", folder=hung).stdout)
    assert "hangs" in json.dumps(state)
    said = json.loads(typed("diagnose", "a", "--json", folder=hung).stdout)["runs"][0]
    assert said["verdict"] == "ill" and said["findings"][0]["code"] == "hang"


def test_a_hung_process_that_is_stopped_or_read_meanwhile_is_not_reported_to_move_again(hung: Path) -> None:
    pid = hangs_of(hung / "runs/a")[0]["evidence"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1.2)  # three looks of the watch
    os.kill(pid, signal.SIGCONT)
    time.sleep(0.8)
    told = findings_of(hung / "runs/a")
    assert len(hangs_of(hung / "runs/a")) == 1 and not any("moves again" in row["evidence"].get("say", "") for row in told)


def test_a_hung_process_that_ignores_sigterm_and_its_child_elsewhere_are_both_ended(
    deaf: tuple[Path, subprocess.Popen[str]],
) -> None:
    folder, process = deaf
    process.communicate(timeout=600)
    assert process.returncode == 137
    child = int((folder / "child").read_text())
    wait_until(lambda: process_state(child) in ("Z", "X"))
    ended = actions_of(folder / "runs/a")[0]
    assert ended["action"] == "end-processes" and "2 of them killed" in ended["detail"]
