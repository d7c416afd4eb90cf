"""Real processes that hang in six ways, and what `holdfast backtrace` says of each."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from holdfast_run import HOLDFAST, PYTHON, VICTIMS, Done, environment, only_run, start, typed, wait_until

from holdfast.probe.rows import last_rows
from holdfast.probe.stacks.keep import kept_stacks, kept_times
from holdfast.probe.stacks.report import Report, report_on_process, report_on_run
from holdfast.probe.stacks.take import processes_of, take_stacks
from holdfast.signals.run_folder import RunFolder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="stacks are read as on Linux")
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
ALONE = ("loop", "deadlock", "gil", "sleeps", "moves")
WITHOUT_PTRACE = ("setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")


def backtrace(folder: Path, *words: str) -> Done:
    """`holdfast backtrace WORDS` in a folder, as a user types it."""
    return typed("backtrace", *words, folder=folder)


def without_ptrace(folder: Path, *words: str) -> str:
    """What it says where a process may not be traced."""
    command = [*WITHOUT_PTRACE, *HOLDFAST, "backtrace", *words]
    return subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=600, check=False
    ).stdout


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Path, int]]]:
    """A folder and a process for each way to hang without torch; the step before it hung is recorded."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in ALONE}
    words = {kind: [PYTHON, str(VICTIMS / "hangs_alone.py"), str(folder / "runs"), kind] for kind, folder in folders.items()}
    started = {kind: subprocess.Popen(words[kind], stdout=subprocess.PIPE, text=True) for kind in ALONE}
    try:
        for process in started.values():
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        wait_until(lambda: all(_age(folders[kind]) > 1.0 for kind in ALONE if kind != "moves"))
        yield {kind: (folders[kind], started[kind].pid) for kind in ALONE}
    finally:
        for process in started.values():
            process.kill()
            process.wait()


def _age(folder: Path) -> float:
    """Seconds since the last step."""
    return time.time() - float(last_rows(only_run(folder) / "rank-0", "steps", ("time",), 1)["time"][-1])


def look(folder: Path, **how: Any) -> Report:
    return report_on_run(RunFolder.open(only_run(folder)), **how)


def line_of(victim: str, text: str) -> int:
    lines = (VICTIMS / victim).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_an_endless_loop_is_named_with_its_function_and_its_line(alone: dict[str, tuple[Path, int]]) -> None:
    verdict = look(alone["loop"][0]).verdict
    assert (verdict.code, verdict.evidence["kind"]) == ("hang", "loop")
    assert "loop()" in verdict.say and "endless loop" in verdict.say
    assert verdict.frame is not None and verdict.frame.line in (line_of("hangs_alone.py", "while True"), 25)


def test_two_locks_in_deadlock_are_both_named_with_their_lines(alone: dict[str, tuple[Path, int]]) -> None:
    verdict = look(alone["deadlock"][0]).verdict
    assert (verdict.code, verdict.evidence["kind"]) == ("hang", "deadlock")
    here, there = line_of("hangs_alone.py", "the main thread's line"), line_of("hangs_alone.py", "the other thread's line")
    say = verdict.say.replace("tests/victims/", "victims/")  # paths are told from where one is
    assert f"lock `second` in take_second() (victims/hangs_alone.py:{here}), held by thread other" in say
    assert f"lock `first` in other_way() (victims/hangs_alone.py:{there}), held by the main thread" in say


def test_the_deadlock_is_found_without_native_frames_too(alone: dict[str, tuple[Path, int]]) -> None:
    folder = alone["deadlock"][0]  # on a machine that is busy with other things what the threads hold may not come in time
    wait_until(lambda: look(folder, native=False).verdict.evidence["kind"] == "deadlock")


@pytest.mark.parametrize("native", [True, False])
def test_c_code_that_holds_the_interpreter_lock_is_named(alone: dict[str, tuple[Path, int]], native: bool) -> None:
    report = look(alone["gil"][0], native=native)
    assert (report.verdict.code, report.verdict.evidence["kind"]) == ("hang", "gil")
    assert "holds the interpreter lock" in report.verdict.say and "PyDLL(None).sleep(600)" in report.verdict.say
    main = report.stacks[0].main
    assert main is not None and main.holds_gil
    if native:  # on a machine that is busy with other things they may not come in time
        wait_until(lambda: _sleeps_in_c(look(alone["gil"][0])))


def _sleeps_in_c(report: Report) -> bool:
    main = report.stacks[0].main
    return main is not None and any(frame.native and "sleep" in frame.func for frame in main.frames)


def test_a_stopped_process_is_read_all_the_same_and_stays_stopped(alone: dict[str, tuple[Path, int]]) -> None:
    folder, pid = alone["sleeps"]
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
        report = look(folder)
        assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
    finally:
        os.kill(pid, signal.SIGCONT)
    assert report.verdict.code == "stopped"
    assert "stopped (SIGSTOP)" in report.verdict.say and f"kill -CONT {pid}" in report.verdict.say
    assert "sleeps()" in report.verdict.say


def test_a_training_that_steps_is_not_called_hung(alone: dict[str, tuple[Path, int]]) -> None:
    report = look(alone["moves"][0])
    assert report.verdict.code == "moving" and "not hung" in report.verdict.say


def test_the_reading_leaves_the_process_running(alone: dict[str, tuple[Path, int]]) -> None:
    folder, pid = alone["moves"]
    take_stacks(RunFolder.open(only_run(folder)), seconds=0.02)  # py-spy is cut off in the middle
    steps = only_run(folder) / "rank-0"
    before = int(last_rows(steps, "steps", ("step",), 1)["step"][-1])
    wait_until(lambda: int(last_rows(steps, "steps", ("step",), 1)["step"][-1]) > before + 5)
    assert psutil.Process(pid).status() != psutil.STATUS_STOPPED


def test_the_verb_shows_the_users_line_and_ends_with_the_sentence(alone: dict[str, tuple[Path, int]]) -> None:
    done = backtrace(alone["sleeps"][0])
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and done.stderr == ""
    assert "      → time.sleep(600)" in lines and "2 idle threads: helper, holdfast" in done.stdout
    assert lines[-1].endswith("(the last was 19).") or lines[-2].startswith("Rank 0 sleeps in sleeps()")
    assert max(map(len, lines)) <= 100


def test_locals_are_shown_only_when_they_are_asked_for(alone: dict[str, tuple[Path, int]]) -> None:
    assert "kept to itself" not in backtrace(alone["sleeps"][0], "--json").stdout
    assert 'secret = "kept to itself"' in backtrace(alone["sleeps"][0], "--locals").stdout


def test_a_process_that_belongs_to_no_run_is_read_and_nothing_is_kept(alone: dict[str, tuple[Path, int]], tmp_path: Path) -> None:
    _, pid = alone["loop"]
    done = backtrace(tmp_path, "-t", str(pid), "--json")
    found = json.loads(done.stdout)
    assert "belongs to no run" in done.stderr and found["kept"] is None
    assert found["verdict"]["evidence"]["kind"] == "loop" and found["processes"][0]["pid"] == pid
    assert report_on_process(pid, native=False).verdict.code == "running"  # it has no steps that could be late


def test_two_dumps_are_kept_and_compared(alone: dict[str, tuple[Path, int]]) -> None:
    run = RunFolder.open(only_run(alone["sleeps"][0]))
    first = look(alone["sleeps"][0], native=False)
    report = look(alone["sleeps"][0], native=False)
    assert [(one.role, one.moved) for one in report.changes] == [("rank 0", False)] and report.before == first.when
    assert kept_times(run)[-2:] == [first.when, report.when]
    newest = kept_stacks(run)
    assert newest is not None and newest[1][0].threads == report.stacks[0].threads


def test_the_query_of_other_probes_runs_as_written(alone: dict[str, tuple[Path, int]]) -> None:
    from holdfast.probe.sql import query

    run = RunFolder.open(only_run(alone["loop"][0]))
    answer = query(run, "SELECT func, file, lineno, depth FROM python.backtrace ORDER BY depth LIMIT 10")
    assert answer.columns == ["func", "file", "lineno", "depth"]
    assert [row[0] for row in answer.rows] == ["loop", "main", "<module>"] and [row[3] for row in answer.rows] == [0, 1, 2]
    counted = query(run, "SELECT COUNT(DISTINCT time), COUNT(DISTINCT thread), MAX(holds_gil) FROM stacks WHERE rank = 0")
    assert counted.rows[0][0] >= 1 and counted.rows[0][1:] == (2, 1)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="a capability can only be given up by root")
def test_without_the_capability_it_says_so_and_the_process_tells_itself(alone: dict[str, tuple[Path, int]]) -> None:
    folder, pid = alone["gil"]  # even then
    found = json.loads(without_ptrace(folder, "--json"))["processes"][0]
    assert "CAP_SYS_PTRACE" in found["problem"] and found["by"] == "faulthandler"
    assert found["threads"][0]["frames"][0]["func"] == "gil"
    assert psutil.pid_exists(pid)


@pytest.fixture(scope="module")
def torch_victims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """A training whose loader hangs, and two ranks of which one does not come; both under `holdfast run`, both stuck."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in ("loader", "ranks")}
    words = {
        "loader": (PYTHON, str(VICTIMS / "hangs_loader.py"), str(folders["loader"] / "pipe")),
        "ranks": (TORCHRUN, "--standalone", "--nproc_per_node=2", str(VICTIMS / "hangs_collective.py")),
    }
    started = {kind: start(folder, "--", *words[kind]) for kind, folder in folders.items()}
    below: list[psutil.Process] = []
    try:
        wait_until(
            lambda: _steps(folders["loader"], 0) >= 10 and min(_steps(folders["ranks"], rank) for rank in (0, 1)) >= 19, 120
        )
        yield folders
    finally:
        for process in started.values():
            below += psutil.Process(process.pid).children(recursive=True)
            process.kill()
        for child in below:
            child.kill()
        for process in started.values():
            process.communicate()


def _steps(folder: Path, rank: int) -> int:
    runs = [path for path in (folder / "runs").glob("*") if not path.is_symlink()]
    steps = last_rows(runs[0] / f"rank-{rank}", "steps", ("step",), 1)["step"] if runs else ()
    return int(steps[-1]) if len(steps) else -1


def test_a_hung_loader_worker_is_named_with_its_line_its_file_and_its_sample(torch_victims: dict[str, Path]) -> None:
    folder = torch_victims["loader"]
    wait_until(lambda: look(folder, native=False).verdict.code != "moving")
    report = look(folder)
    roles = [one.role for one in report.stacks]
    assert roles[:3] == ["rank 0", "rank 0 loader worker 0", "rank 0 loader worker 1"]
    verdict = report.verdict
    assert verdict.code == "loader-stall" and verdict.evidence["worker"] == 1 and verdict.evidence["sample"] == "sample 45"
    assert verdict.evidence["line"] == line_of("hangs_loader.py", "with path.open(")
    assert f"is in open() of {folder / 'pipe'} in Samples.read()" in verdict.say


def test_the_rank_that_is_missing_from_a_collective_is_named(torch_victims: dict[str, Path]) -> None:
    folder = torch_victims["ranks"]
    wait_until(lambda: look(folder, native=False).verdict.code != "moving")
    verdict = look(folder).verdict
    assert verdict.code == "collective-stall" and verdict.rank == 1 and verdict.evidence["missing"] == [1]
    assert re.search(r"Rank 0 waits in all_reduce in average\(\) \(\S+:\d+\) since \d\d:\d\d:\d\d, rank 1 is in", verdict.say)
    assert "rank 1 is in read() of a pipe in wait_for_settings()" in verdict.say
    assert [one.role for one in processes_of(RunFolder.open(only_run(folder)))] == ["rank 0", "rank 1", "torchrun"]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="a capability can only be given up by root")
def test_without_the_capability_the_stuck_worker_is_found_all_the_same(torch_victims: dict[str, Path]) -> None:
    shown = without_ptrace(torch_victims["loader"])
    assert shown.count("CAP_SYS_PTRACE") == 1 and shown.count("as above; stacks by faulthandler:") == 2
    assert re.search(r"Rank 0 waits for its loader: worker 1 \(process \d+\) is in read\(\)", " ".join(shown.split())), shown
