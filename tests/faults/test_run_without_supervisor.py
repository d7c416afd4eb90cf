"""Nobody at the other end: the supervisor was killed, the reader of our output left, a child stayed behind."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from holdfast_run import HOLDFAST, PYTHON, VICTIMS, Terminal, environment, info_of, only_run, run, start, wait_until

VICTIM = str(VICTIMS / "prints_on.py")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


@linux_only
def test_a_training_and_its_child_outlive_their_killed_supervisor_and_their_later_lines_arrive(tmp_path: Path) -> None:
    out, done = tmp_path / "out", tmp_path / "done"
    with out.open("wb") as file:
        process = start(tmp_path, PYTHON, VICTIM, "90", str(done), "fork", stdout=file, stderr=subprocess.DEVNULL)
    wait_until(lambda: "line 20\n" in out.read_text())
    process.kill()
    process.wait()
    wait_until(done.exists)
    for who in ("line", "child's line"):
        wanted = [f"{who} {number}" for number in range(90)]
        wait_until(lambda wanted=wanted: wanted[-1] in out.read_text().splitlines(), 60)  # type: ignore[misc]
        seen = [line for line in out.read_text().splitlines() if line.startswith(who)]
        lost = set(wanted) - set(seen)
        assert len(lost) <= 5, "more than what the supervisor was just handling"
        assert seen == [line for line in wanted if line not in lost]


IN_A_TERMINAL = """
import os, time
import torch
terminal = os.fstat(1).st_ino  # before the line for which the supervisor is killed
print("line 1", flush=True)
while os.fstat(1).st_ino == terminal:  # until it leads elsewhere
    time.sleep(0.01)
print("line 2", flush=True)
"""


@linux_only
def test_a_training_in_a_terminal_outlives_its_killed_supervisor(tmp_path: Path) -> None:
    words = shlex.join([*HOLDFAST, "run", PYTHON, "-c", IN_A_TERMINAL])
    terminal = Terminal(["sh", "-c", f"{words}; exec cat"], tmp_path)  # the terminal stays open, as under a shell
    try:
        terminal.until(b"line 1")
        terminal.until(b"\n")  # a `print` under way at the very moment fails, as the module says
        os.kill(info_of(only_run(tmp_path))["supervisor"], signal.SIGKILL)
        terminal.until(b"line 2")
    finally:
        terminal.close()


@linux_only
def test_a_reader_that_leaves_breaks_the_commands_pipe_as_it_would_alone(tmp_path: Path) -> None:
    done = tmp_path / "done"
    process = start(tmp_path, PYTHON, VICTIM, "100000", str(done))
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert "BrokenPipeError" in process.stderr.read()
    assert process.wait() == 1
    process.stderr.close()
    assert not done.exists()


def test_a_plain_program_dies_of_a_broken_pipe_as_it_would_alone(tmp_path: Path) -> None:
    words = shlex.join([*HOLDFAST, "run", "--name", "a", "yes"])
    subprocess.run(["bash", "-c", f"{words} | head -1"], cwd=tmp_path, env=environment(tmp_path), timeout=600, check=True)
    wait_until(lambda: info_of(tmp_path / "runs/a")["exit_code"] == 141)


def test_a_silent_child_left_behind_does_not_keep_the_supervisor(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        script = "sleep 600 & echo $! > child; exit 3"
        done = run(tmp_path, "sh", "-c", script, capture_output=False, stdout=out, stderr=out)
    child = int((tmp_path / "child").read_text())
    os.kill(child, 9)  # it is still there
    assert done.returncode == 3


def test_a_child_left_behind_goes_on_printing_to_where_it_was_sent(tmp_path: Path) -> None:
    out, gone = tmp_path / "out", tmp_path / "supervisor-is-gone"
    script = f"(echo later 1; until [ -e {gone} ]; do sleep 0.02; done; echo later 2; echo later 3) & echo first"
    with out.open("wb") as file:
        run(tmp_path, "--name", "a", "sh", "-c", script, capture_output=False, stdout=file, stderr=subprocess.DEVNULL)
    gone.touch()
    wait_until(lambda: "later 3" in out.read_text())
    assert out.read_text().split("\n")[-4:-1] in (["later 1", "later 2", "later 3"], ["first", "later 2", "later 3"])
    wait_until(lambda: "later 3" in (tmp_path / "runs/a/train.log").read_text())


def test_a_reader_that_never_reads_can_be_left_with_a_signal(tmp_path: Path) -> None:
    with start(tmp_path, "--name", "a", PYTHON, "-c", "print('x' * 150_000)", stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: (tmp_path / "runs/a/run.json").exists() and info_of(tmp_path / "runs/a")["ended"] is not None)
        process.terminate()
        assert process.wait(600) == 0


def test_a_slow_reader_gets_everything_although_the_command_has_ended(tmp_path: Path) -> None:
    script = "import os; [os.write(1, b'x' * 1000) for _ in range(190)]"
    with start(tmp_path, PYTHON, "-c", script, stderr=subprocess.DEVNULL) as process:
        time.sleep(2.5)  # longer than it lingers for others
        assert process.stdout is not None
        assert len(process.stdout.read()) == 190_000
