"""Real processes with torch in them: the all-reduce and the tiny compile, with the faults that break them."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from holdfast.environment.check import OK, PROBLEM, SKIPPED, WARNING
from holdfast.environment.checks import all_reduce, compile
from holdfast.environment.child import FAILED, TIMED_OUT, TOO_LARGE, Ended, run_child
from holdfast.environment.machine import Machine
from holdfast.environment.torch_facts import TorchFacts


def stop_rank(number: int, stopped: list[psutil.Process]) -> None:
    """Stop one rank of an all-reduce of this process, as soon as it is there."""
    until = time.monotonic() + 600
    while not stopped and time.monotonic() < until:
        for child in psutil.Process().children():
            try:
                words = child.cmdline()
            except psutil.Error:
                continue
            if any(word.endswith("all_reduce_rank.py") for word in words) and words[2] == str(number):
                child.send_signal(signal.SIGSTOP)
                stopped.append(child)
        time.sleep(0.01)


def test_two_processes_of_this_machine_add_up_a_tensor(real_torch: TorchFacts) -> None:
    verdict = all_reduce.ask(Machine(torch=real_torch))
    assert verdict.level == OK and "2 processes added up a tensor" in verdict.message


@pytest.mark.slow
def test_a_rank_that_never_comes_is_named_within_the_time_limit_and_nothing_is_left_running(real_torch: TorchFacts) -> None:
    stopped: list[psutil.Process] = []
    watcher = threading.Thread(target=stop_rank, args=(1, stopped))
    watcher.start()
    verdict = all_reduce.ask(Machine(torch=TorchFacts(version=real_torch.version)), seconds=5.0)
    watcher.join()
    assert stopped and verdict.level == PROBLEM
    assert "did not end in 5 s; rank" in verdict.message and verdict.evidence["rank 1 got to"] == "start"
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in stopped)


@pytest.mark.slow
def test_an_interface_that_does_not_exist_is_a_problem_with_the_variable_in_the_evidence(
    real_torch: TorchFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    verdict = all_reduce.ask(Machine(torch=TorchFacts(version=real_torch.version)), seconds=60.0)
    assert verdict.level == PROBLEM and verdict.evidence["GLOO_SOCKET_IFNAME"] == "nosuch0"
    assert "export GLOO_SOCKET_IFNAME=lo" in verdict.fixes[0].commands


def test_where_torch_is_broken_nothing_heavy_is_tried() -> None:
    machine = Machine(torch=TorchFacts(error="broken"))
    assert all_reduce.ask(machine).level == SKIPPED and compile.ask(machine).level == SKIPPED


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other commands")
def test_what_a_compile_lacks_is_named_with_what_installs_it() -> None:
    said = {  # as torch, Triton and gcc word it
        "InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')": "g++",
        "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.": "gcc",
        "main.c:5:10: fatal error: Python.h: No such file or directory": "python3-dev",
        "header.cpp:2:10: fatal error: omp.h: No such file or directory": "libomp-dev",
    }
    for errors, package in said.items():
        verdict = compile._failed(Ended(FAILED, 1, errors=f"Traceback (most recent call last):\n{errors}\n"), 240.0, 6 << 30, {})
        assert verdict.level == WARNING and verdict.fixes[0].commands == (f"sudo apt install {package}",), errors


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds its compiler through PATH")
def test_a_missing_compiler_is_named_by_a_real_compile_with_what_installs_it(
    real_torch: TorchFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    verdict = compile.ask(Machine(torch=TorchFacts(version=real_torch.version)))
    assert verdict.level == WARNING and "no working C++ compiler" in verdict.message
    assert verdict.fixes[0].commands == ("sudo apt install g++",)


@pytest.mark.slow
def test_a_small_function_compiles_here(real_torch: TorchFacts) -> None:
    assert compile.ask(Machine(torch=real_torch)).level == OK


def test_a_compile_is_ended_at_its_limits_of_time_and_memory(real_torch: TorchFacts) -> None:
    machine = Machine(torch=TorchFacts(version=real_torch.version))
    quick = compile.ask(machine, seconds=0.3)
    assert quick.level == WARNING and "did not finish in 0 s" in quick.message
    small = compile.ask(machine, memory=40 << 20)
    assert small.level == WARNING and "more than 40 MiB" in small.message


def test_a_child_that_is_ended_takes_the_processes_it_started_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = f"import os, subprocess; open({str(tmp_path / 'pid')!r}, 'w').write(str(subprocess.Popen(['sleep', '60']).pid))"
    (tmp_path / "sitecustomize.py").write_text(f"{started}\nimport time; time.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ended = run_child("nvml_facts.py", seconds=2.0)
    pid = int((tmp_path / "pid").read_text())
    assert ended.how == TIMED_OUT
    for _ in range(50):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            break
        time.sleep(0.1)
    else:
        os.kill(pid, signal.SIGKILL)
        pytest.fail("a process of the child runs on")


def test_a_child_that_takes_too_much_memory_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("held = bytearray(300 << 20)\nimport time; time.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ended = run_child("nvml_facts.py", seconds=50.0, memory=100 << 20)
    assert ended.how == TOO_LARGE and ended.peak > 100 << 20
