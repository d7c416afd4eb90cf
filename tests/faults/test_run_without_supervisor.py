"""Nobody at the other end: the supervisor was killed, the reader of our output left, a child stayed behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from holdfast_run import HOLDFAST, PYTHON, VICTIMS, Terminal, environment, info_of, only_run, run, start, wait_until

VICTIM = str(VICTIMS / "prints_on.py")
LINES = [f"line {number}" for number in range(90)]
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def lines_of(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines() if line.startswith("line")]


@linux_only
@pytest.mark.parametrize("how", ["itself", "fork"])
def test_a_training_outlives_its_killed_supervisor_and_its_later_lines_arrive(how: str, tmp_path: Path) -> None:
    out, done = tmp_path / "out", tmp_path / "done"
    with out.open("wb") as file:
        process = start(tmp_path, PYTHON, VICTIM, "90", str(done), how, stdout=file, stderr=subprocess.DEVNULL)
    wait_until(lambda: "line 20\n" in out.read_text())
    process.kill()
    process.wait()
    wait_until(done.exists)
    wait_until(lambda: LINES[-1] in lines_of(out))
    lost = set(LINES) - set(lines_of(out))
    assert len(lost) <= 1, "more than what the supervisor was just handling"
    assert lines_of(out) == [line for line in LINES if line not in lost]


@linux_only
def test_a_training_in_a_terminal_outlives_its_killed_supervisor(tmp_path: Path) -> None:
    done = tmp_path / "done"
    words = " ".join([*HOLDFAST, "run", PYTHON, VICTIM, "90", str(done)])
    terminal = Terminal(["sh", "-c", f"{words}; exec cat"], tmp_path)  # the terminal stays open, as under a shell
    try:
        terminal.until(b"line 20")
        os.kill(info_of(only_run(tmp_path))["supervisor"], 9)
        terminal.until(b"line 89")
        wait_until(done.exists)
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
    words = " ".join([*HOLDFAST, "run", "--name", "a", "yes"])
    subprocess.run(["bash", "-c", f"{words} | head -1"], cwd=tmp_path, env=environment(tmp_path), timeout=20, check=True)
    wait_until(lambda: info_of(tmp_path / "runs/a")["exit_code"] == 141)


def test_a_silent_child_left_behind_does_not_keep_the_supervisor(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        begun = time.monotonic()
        done = run(tmp_path, "sh", "-c", "sleep 20 & exit 3", capture_output=False, stdout=out, stderr=out)
    assert done.returncode == 3
    assert time.monotonic() - begun < 8


def test_a_child_left_behind_goes_on_printing_to_where_it_was_sent(tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = "(for i in 1 2 3 4 5 6; do sleep 0.4; echo later $i; done) & echo first"
    with out.open("wb") as file:
        begun = time.monotonic()
        run(tmp_path, "--name", "a", "sh", "-c", script, capture_output=False, stdout=file, stderr=subprocess.DEVNULL)
        took = time.monotonic() - begun
    assert took < 3, "it waited for the child"
    wait_until(lambda: "later 6" in out.read_text())
    assert out.read_text().split("\n")[:3] == ["first", "later 1", "later 2"]
    wait_until(lambda: "later 6" in (tmp_path / "runs/a/train.log").read_text())


def test_a_reader_that_never_reads_can_be_left_with_a_signal(tmp_path: Path) -> None:
    with start(tmp_path, "--name", "a", PYTHON, "-c", "print('x' * 150_000)", stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: (tmp_path / "runs/a/run.json").exists() and info_of(tmp_path / "runs/a")["ended"] is not None)
        process.terminate()
        assert process.wait(10) == 0


def test_a_slow_reader_gets_everything_although_the_command_has_ended(tmp_path: Path) -> None:
    script = "import os; [os.write(1, b'x' * 1000) for _ in range(190)]"
    with start(tmp_path, PYTHON, "-c", script, stderr=subprocess.DEVNULL) as process:
        time.sleep(2.5)  # longer than it lingers for others
        assert process.stdout is not None
        assert len(process.stdout.read()) == 190_000
