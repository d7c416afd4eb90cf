"""A folder that cannot be written costs the record, never the training."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from holdfast_run import PYTHON, environment, findings_of, info_of, only_run, run, start, wait_until


@pytest.fixture
def small_disk(mount: Callable[..., Path]) -> Path:
    """A disk of half a megabyte."""
    return mount("size=512k")


def fill(folder: Path) -> None:
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


def said_folder(line: str) -> Path:
    found = re.match(r"holdfast: run \S+ in (\S+) \((.*)\)$", line)
    assert found, line
    return Path(found[1])


def test_a_file_in_the_way_of_the_runs_folder_moves_the_run_to_the_temporary_folder(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("not a folder")
    done = run(tmp_path, "sh", "-c", "echo trained; exit 5", env={"TMPDIR": str(tmp_path)})
    assert (done.stdout, done.returncode) == ("trained\n", 5)
    folder = said_folder(done.stderr.strip())
    assert folder.parent.parent == tmp_path and "runs cannot be written: File exists" in done.stderr
    (finding,) = findings_of(folder)
    assert finding["code"] == "holdfast-degraded" and "runs" in finding["evidence"]["what"]
    assert (folder / "train.log").read_text() == "trained\n"


def test_a_read_only_folder_moves_the_run_to_the_temporary_folder(small_disk: Path, tmp_path: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    done = run(tmp_path, "--folder", "disk/runs", "echo", "trained", env={"TMPDIR": str(tmp_path)})
    assert done.stdout == "trained\n" and "Read-only file system" in done.stderr
    assert findings_of(said_folder(done.stderr.strip()))


def test_a_full_disk_moves_the_run_and_leaves_no_half_made_folder(small_disk: Path, tmp_path: Path) -> None:
    fill(small_disk)
    done = run(tmp_path, "--folder", "disk/runs", "echo", "trained", env={"TMPDIR": str(tmp_path)})
    assert done.stdout == "trained\n" and "No space left" in done.stderr
    assert findings_of(said_folder(done.stderr.strip()))
    assert not list((small_disk / "runs").glob("*"))


def test_without_any_folder_the_command_runs_unwatched_and_the_line_says_so(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    script = "import os; print([key for key in os.environ if key.startswith('HOLDFAST_')]); raise SystemExit(6)"
    blocked = "import tempfile; tempfile.tempdir = '/proc/nowhere'"
    words = f"{blocked}; import sys; sys.argv = ['holdfast', 'run', {PYTHON!r}, '-c', {script!r}]; "
    words += "from holdfast.cli.main import main; main()"
    done = subprocess.run(
        [PYTHON, "-c", words], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("[]\n", 6)
    assert done.stderr.startswith("holdfast: not watching this run") and len(done.stderr.splitlines()) == 1


def test_a_disk_that_fills_up_costs_the_log_and_not_the_output(small_disk: Path, tmp_path: Path) -> None:
    script = "for i in range(40000): print('line', i, 'x' * 20)"
    done = run(tmp_path, "--folder", "disk", "--name", "a", PYTHON, "-c", script)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 40000
    assert done.stdout.encode().startswith((small_disk / "a/train.log").read_bytes()[:100_000])
    (small_disk / "a/train.log").unlink()


def test_trouble_is_recorded_when_the_full_disk_has_room_again(small_disk: Path, tmp_path: Path) -> None:
    script = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
    with start(tmp_path, "--folder", "disk", "--name", "a", PYTHON, "-c", script, stdin=subprocess.PIPE) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stderr.readline()
        wait_until((small_disk / "a/run.json").exists)
        fill(small_disk)
        for number in range(3):
            print("x" * 5000, number, file=process.stdin, flush=True)
            assert process.stdout.readline() == "x" * 5000 + f" {number}\n"
        wait_until((small_disk / "a/train.log").exists)
        time.sleep(0.5)  # the log is written beside the copying; let it meet the full disk
        (small_disk / "ballast").unlink()
        process.stdin.close()
    finding, *again = findings_of(small_disk / "a")
    assert finding["code"] == "holdfast-degraded" and "No space left" in finding["evidence"]["error"]
    assert len(again) < 3, "at every doubling"


def test_a_folder_that_becomes_read_only_and_stays_so_is_reported_on_the_terminal(small_disk: Path, tmp_path: Path) -> None:
    words = ("--folder", "disk", "--name", "a", PYTHON, "-c", "input(); print('trained')")
    with start(tmp_path, *words, stdin=subprocess.PIPE) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stderr.readline()
        wait_until((small_disk / "a/run.json").exists)
        subprocess.run(["mount", "-o", "remount,ro,bind", str(small_disk)], check=True)
        process.stdin.write("go\n")
        process.stdin.close()
        assert process.stdout.read() == "trained\n"
        assert "record of a is incomplete" in process.stderr.read()
    assert process.returncode == 0


def test_a_run_folder_that_is_removed_under_way_costs_nothing_but_itself(tmp_path: Path) -> None:
    script = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)\nsys.exit(9)"
    with start(tmp_path, PYTHON, "-c", script, stdin=subprocess.PIPE) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stderr.readline()
        wait_until(lambda: "packages" in info_of(only_run(tmp_path)))  # the last that is written while it runs
        shutil.rmtree(only_run(tmp_path))
        print("still here", file=process.stdin, flush=True)
        assert process.stdout.readline() == "still here\n"
        process.stdin.close()
        assert process.stderr.read() == ""
    assert process.returncode == 9
