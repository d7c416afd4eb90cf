"""A training that only pauses is never taken for one that hangs: under `heal` it would be killed for it."""

from __future__ import annotations

import json
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


def storage_is_back(process: subprocess.Popen[Any]) -> None:
    """The worker of the loader waits in the kernel for a process of its own; without that one, it goes on."""
    (waiting,) = (one for one in tree(process) if one.status() == psutil.STATUS_DISK_SLEEP)
    for one in waiting.children():
        one.kill()


def it_was_left_alone(folder: Path, process: subprocess.Popen[Any], seconds: float = 600.0) -> None:
    assert process.wait(timeout=seconds) == 0 and has_printed(folder, "done")
    journal = folder / "runs/a/journal.jsonl"
    rows = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    assert [row for row in rows if row["kind"] == "finding" and row["severity"] == "critical"] == []
    assert [row for row in rows if row["kind"] == "action" and row["action"] in ("restart", "end-processes")] == []


SETTLE = 240  # steps: more than the watch looks back at, so that what was slow before raises no limit


@pytest.fixture(scope="module")
def debugged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Terminal]]:
    """A training at a terminal: its worker waits for storage, later a person debugs it. It runs while other tests do."""
    folder = tmp_path_factory.mktemp("debugged")
    pauses = (PAUSES, "20:disk:600", f"{SETTLE + 20}:debug:0", "--steps", str(SETTLE + 40), "--every", "0.008")
    terminal = Terminal([*HOLDFAST, "run", "--policy", "heal", "--name", "a", "--hang-after", "1", PYTHON, *pauses], folder)
    yield folder, terminal
    terminal.close()


@pytest.mark.slow
def test_slow_work_a_stopped_process_and_a_suspended_machine_are_not_a_hang(
    debugged: tuple[Path, Terminal], tmp_path: Path
) -> None:
    def says_stopped() -> bool:
        return any("is stopped" in row["evidence"].get("say", "") for row in findings_of(tmp_path / "runs/a"))

    slow = ("0:step:1.5", "10:evaluate:1.5", "20:save:1.5", "--steps", str(2 * SETTLE + 60), "--every", "0.008")
    with training(tmp_path, *slow, hang_after=1.0) as process:
        wait_until(lambda: has_printed(tmp_path, f"step {SETTLE + 20}"))
        everything = tree(process)
        assert len(everything) > 1 and not says_stopped()
        stop(everything[1:])
        wait_until(says_stopped)
        go_on(everything[1:])
        wait_until(lambda: has_printed(tmp_path, f"step {2 * SETTLE + 40}"))
        stop(everything)
        time.sleep(2.5)
        go_on(everything)
        it_was_left_alone(tmp_path, process)


@pytest.mark.slow
def test_storage_that_pauses_and_a_person_in_a_debugger_at_a_terminal_are_not_a_hang(debugged: tuple[Path, Terminal]) -> None:
    def is_reported(words: str) -> bool:
        return any(words in row["evidence"].get("say", "") for row in findings_of(folder / "runs/a"))

    folder, terminal = debugged
    wait_until(lambda: is_reported("waits for a disk"))
    storage_is_back(terminal.process)
    terminal.until(b"(Pdb)")
    wait_until(lambda: is_reported("debugger"))
    terminal.type(b"p step\n")
    terminal.until(str(SETTLE + 20).encode())
    terminal.type(b"continue\n")
    terminal.until(b"done")
    terminal.rest()
    it_was_left_alone(folder, terminal.process)


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
        wait_until(lambda: all(has_printed(folders[kind], "step 10") for kind in ("suspended", "stopped")))
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
