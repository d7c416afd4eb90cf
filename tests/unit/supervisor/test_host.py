from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from holdfast_run import wait_until

from holdfast.errors import DamagedSegment
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import MISSING_BITS, MISSING_INT
from holdfast.signals.segment import Segment
from holdfast.signals.strings import read_strings
from holdfast.signals.trouble import Trouble
from holdfast.supervisor import host

BUSY = "import time; print('up', flush=True)\nwhile True: pass"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "a")


def sample(run: RunFolder, root: int, wait: Any) -> None:
    sampler = host.HostSampler(run, root, Trouble(run.journal))
    sampler.start()
    wait()
    sampler.stop()


def test_a_command_that_never_trains_leaves_no_host_folder(run: RunFolder) -> None:
    sampler = host.HostSampler(run, os.getpid(), Trouble(run.journal))
    sampler.start()
    sampler.stop()
    assert not (run.path / "host").exists()


def _processors_of(pid: int, run: RunFolder) -> Any:
    table = Segment(run.path / "host/processes/000000.seg")
    return table.column("cpu")[table.column("pid") == pid]


def test_the_process_tree_is_sampled_with_memory_and_processors_in_use(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_EVERY_SECONDS", 0.3)
    run.claim(0)
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as busy:
        try:
            assert busy.stdout is not None
            busy.stdout.readline()
            sampler = host.HostSampler(run, os.getpid(), Trouble(run.journal))
            sampler.start()
            _wait_for_rows_of(busy.pid, run.path / "host/processes/000000.seg", 3)
            wait_until(lambda: bool(np.nanmax(_processors_of(busy.pid, run)) > 0.1))  # it may have to share them
            sampler.stop()
        finally:
            busy.kill()
    table = Segment(run.path / "host/processes/000000.seg")
    mine = table.column("pid") == busy.pid
    assert (table.column("parent")[mine] == os.getpid()).all()
    assert (table.column("rss")[mine] > 1_000_000).all()
    assert np.nanmax(_processors_of(busy.pid, run)) < 1.5
    names = read_strings(run.path / "host")
    assert "while True" in names[table.column("command")[mine][0]]
    assert names[table.column("state")[mine][0]] == "running"


def test_what_a_gpu_does_not_tell_is_missing_and_the_rest_is_there(run: RunFolder) -> None:
    class Refused(Exception):
        pass

    def refuse(*_: Any) -> None:
        raise Refused

    nvml = SimpleNamespace(
        NVMLError=Refused,
        NVML_TEMPERATURE_GPU=0,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetName=lambda _: b"Test GPU",
        nvmlDeviceGetUtilizationRates=refuse,
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=10, total=20),
        nvmlDeviceGetTemperature=lambda *_: 55,
        nvmlDeviceGetPowerUsage=lambda _: 250_000,
    )
    recorder: Any = SimpleNamespace(strings=SimpleNamespace(code=lambda text: {"Test GPU": 3}[text]))
    ((_, number, name, busy, used, total, degrees, watts),) = host.Gpus(nvml).rows(recorder)
    assert (number, name, used, total, degrees, watts) == (0, 3, 10, 20, 55.0, 250.0)
    assert np.float64(busy).view("u8") == MISSING_BITS
    assert used != MISSING_INT


def test_a_process_that_is_gone_gives_no_rows(run: RunFolder) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    recorder: Any = SimpleNamespace()
    assert host.Processes(process.pid).rows(recorder) == []


def _wait_for_rows_of(pid: int, path: Path, count: int) -> None:
    """Rows of that process: what else runs below the tests is sampled too."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError, DamagedSegment):  # it may be about to be made
            if np.count_nonzero(Segment(path).column("pid") == pid) >= count:
                return
        time.sleep(0.05)
    raise AssertionError("no rows came")
