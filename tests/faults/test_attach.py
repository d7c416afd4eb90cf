"""Holdfast gets into a training that was started without it, and finds its way around inside a method with odd names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from asked_run import AskedRun
from holdfast_run import PYTHON, VICTIMS, Done, environment, typed, wait_until

from holdfast.errors import HoldfastError
from holdfast.probe.attach.checks import check
from holdfast.probe.attach.enter import enter

if not hasattr(sys, "remote_exec"):  # Python 3.14 lets itself be entered
    pytest.importorskip("pyinjector")
pytestmark = pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs the right to trace a process")


def attach(folder: Path, *words: str) -> Done:
    return typed("attach", *words, folder=folder)


def as_nobody(do: Callable[[], object]) -> str:
    """What goes wrong when another user does it, in a child of this process."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            do()
        except HoldfastError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        return said.read()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attach")


@pytest.fixture(scope="module")
def process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    words = [PYTHON, str(VICTIMS / "trains_in_a_method.py"), "120"]
    started = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(folder))
    assert started.stdout is not None and started.stdout.readline() == "ready\n"
    yield started
    started.kill()
    started.wait()


@pytest.fixture(scope="module")
def attached(folder: Path, process: subprocess.Popen[str]) -> AskedRun:
    done = attach(folder, str(process.pid), "--name", "entered", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["state"] == "armed"
    found = AskedRun(folder, "entered")
    found.wait()
    return found


def test_recording_starts_at_the_next_step(attached: AskedRun, process: subprocess.Popen[str]) -> None:
    assert attached.run.info()["pid"] == process.pid
    wait_until(lambda: int(attached.eval("1")["step"]) > 40)
    listed = attached.type("query", "SELECT count(*) > 10 AS many, max(loss) > 0 AS seen, max(samples) AS n FROM steps", "--json")
    assert json.loads(listed.stdout) == [{"many": True, "seen": True, "n": 16}]


def test_things_with_other_names_are_found_by_what_they_are(attached: AskedRun) -> None:
    assert attached.value("model is self.net, optimizer is self.opt, scheduler is self.plan, train_loader is self.data") == str(
        (True,) * 4
    )
    assert "NameError" in attached.eval("trainer")["error"]


def test_the_locals_of_every_frame_are_seen_as_they_are_now(attached: AskedRun) -> None:
    assert attached.value("patience, runner is self, seconds, Runner is type(self)") == "(5, True, 120.0, True)"
    before = int(attached.value("count") or 0)
    wait_until(lambda: int(attached.value("count") or 0) > before + 5)


def test_a_change_works_as_in_any_run(attached: AskedRun) -> None:
    made = attached.change("set", text="lr=0.005").answer
    assert (made["from"], made["to"]) == (0.01, 0.005)
    assert "lr 0.01 → 0.005" in attached.type("journal").stdout


def test_a_second_time_is_refused_and_the_process_runs_on(attached: AskedRun, process: subprocess.Popen[str]) -> None:
    by_place, with_t = attach(attached.folder, str(process.pid)), attach(attached.folder, "-t", str(process.pid))
    assert by_place == with_t and by_place.returncode == 2
    assert "recorded already" in by_place.stderr
    assert attached.eval("1")["ok"]


def test_what_is_no_python_or_another_users_or_gone_is_told_in_words_and_left_alone(folder: Path) -> None:
    other = subprocess.Popen(["sleep", "60"])
    try:
        done = attach(folder, str(other.pid))
        assert (done.returncode, "is not Python" in done.stderr) == (2, True)
        assert "there is no process" in attach(folder, "4194303").stderr
        assert "belongs to root" in as_nobody(lambda: check(os.getppid()))
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_process_that_waits_for_input_and_has_not_imported_torch_waits_for_it(folder: Path) -> None:
    pytest.importorskip("pyinjector")  # a Python that is asked gets to it when its own code moves on
    then = "sys.stdin.readline(); print(type(sys.meta_path[0]).__name__, 'torch' in sys.modules)"
    code = f"import sys; print('up', flush=True); {then}"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([PYTHON, "-c", code], text=True, **pipes)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    done = attach(folder, "-t", str(process.pid), "--name", "early")
    assert "has not imported torch" in done.stderr, done.stderr
    printed = process.communicate("\n", timeout=600)
    assert printed == ("TorchFinder False\n", "")


def test_a_process_that_allocates_all_the_time_survives_being_entered_again_and_again(tmp_path: Path) -> None:
    code = "print('up', flush=True)\nfor n in iter(int, 1): kept = [bytearray(k * 37 % 9000) for k in range(2000)]"
    process = subprocess.Popen([PYTHON, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        states = [enter(check(process.pid), tmp_path, policy="observe", budget=0.01)["state"] for _ in range(4)]
        assert states == ["waits", *["already"] * 3]
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_zz_a_local_of_a_method_that_is_assigned_ends_the_loop(attached: AskedRun, process: subprocess.Popen[str]) -> None:
    if sys.version_info < (3, 13):  # since then a frame's locals can be assigned from anywhere
        assert "between two steps" in attached.eval("patience = 0", now=True)["error"]
    attached.value("patience = 0")
    assert process.stdout is not None
    printed = process.stdout.read()
    assert process.wait(600) == 0
    assert printed.startswith("made ")
