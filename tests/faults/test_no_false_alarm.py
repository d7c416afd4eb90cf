"""A training that only pauses is never taken for one that hangs: under `heal` it would be killed for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from holdfast_run import HOLDFAST, PYTHON, VICTIMS, Terminal, findings_of, start, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are stopped and held as on Linux")
PAUSES = str(VICTIMS / "pauses.py")


@contextmanager
def training(folder: Path, *words: str, hang_after: float | None = None) -> Iterator[subprocess.Popen[str]]:
    """The victim under `holdfast run --policy heal`, while it lives."""
    limit = () if hang_after is None else ("--hang-after", str(hang_after))
    process = start(folder, "--policy", "heal", "--name", "a", *limit, PYTHON, PAUSES, *words, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        for one in tree(process):
            one.kill()
        process.communicate()


def tree(process: subprocess.Popen[Any]) -> list[psutil.Process]:
    """The supervisor first, then what it started."""
    try:
        top = psutil.Process(process.pid)
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def has_printed(folder: Path, line: str) -> bool:
    log = folder / "runs/a/train.log"
    return log.exists() and line in log.read_text().splitlines()


def stop(those: Sequence[psutil.Process]) -> None:
    for one in those:
        one.send_signal(signal.SIGSTOP)


def go_on(those: Sequence[psutil.Process]) -> None:
    for one in those:
        one.send_signal(signal.SIGCONT)


def it_was_left_alone(folder: Path, process: subprocess.Popen[str], seconds: float = 60.0) -> None:
    assert process.wait(timeout=seconds) == 0 and has_printed(folder, "done")
    journal = folder / "runs/a/journal.jsonl"
    rows = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    assert [row for row in rows if row["kind"] == "finding" and row["severity"] == "critical"] == []
    assert [row for row in rows if row["kind"] == "action" and row["action"] in ("restart", "end-processes")] == []


def test_a_machine_that_was_suspended_with_everything_on_it_is_no_hang(tmp_path: Path) -> None:
    with training(tmp_path, hang_after=1) as process:
        wait_until(lambda: has_printed(tmp_path, "step 10"), 60)
        everything = tree(process)
        assert len(everything) > 1
        stop(everything)
        time.sleep(4)
        go_on(everything)
        it_was_left_alone(tmp_path, process)


def test_storage_that_pauses_is_waited_for(tmp_path: Path) -> None:
    """A worker that stands in the kernel for longer than the limit, and one that reads for a while and then goes on."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with training(tmp_path, "20:disk:6", f"40:read:{pipe}", hang_after=2) as process:
        wait_until(lambda: has_printed(tmp_path, "step 38"), 60)
        time.sleep(1.2)
        pipe.write_bytes(b"here it is")
        it_was_left_alone(tmp_path, process)


def test_a_person_in_a_debugger_at_a_terminal_is_no_hang(tmp_path: Path) -> None:
    words = [*HOLDFAST, "run", "--policy", "heal", "--name", "a", "--hang-after", "0.5", PYTHON, PAUSES, "30:debug:0"]
    terminal = Terminal(words, tmp_path)
    try:
        terminal.until(b"(Pdb)", 60)
        time.sleep(4)
        terminal.type(b"p step\n")
        terminal.until(b"30")
        terminal.type(b"continue\n")
        terminal.until(b"done", 60)
        terminal.rest()
        assert terminal.process.returncode == 0
    finally:
        terminal.close()
    rows = findings_of(tmp_path / "runs/a")
    assert [row for row in rows if row["severity"] == "critical"] == []


LONG = {
    "suspended": ("--steps", "200"),
    "stopped": ("--steps", "200"),
    "first-step": ("0:step:90", "40:evaluate:15", "--every", "0.15"),  # the evaluation: a hundred steps
    "storage": ("20:disk:60", "--every", "0.05"),
}


@pytest.fixture(scope="module")
def long_ones(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Path, subprocess.Popen[str]]]]:
    """Four trainings at once with the limits that a user has; two of them are stopped for a minute."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in LONG}
    made = {kind: training(folders[kind], *words) for kind, words in LONG.items()}
    started = {kind: one.__enter__() for kind, one in made.items()}
    try:
        wait_until(lambda: all(has_printed(folders[kind], "step 10") for kind in ("suspended", "stopped")), 120)
        stopped = [*tree(started["suspended"]), *tree(started["stopped"])[1:]]
        stop(stopped)
        time.sleep(60)
        go_on(stopped)
        yield {kind: (folders[kind], started[kind]) for kind in LONG}
    finally:
        for one in made.values():
            one.__exit__(None, None, None)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LONG)
def test_a_minute_in_which_nothing_moves_is_no_hang(long_ones: dict[str, tuple[Path, subprocess.Popen[str]]], kind: str) -> None:
    it_was_left_alone(*long_ones[kind], seconds=180)
