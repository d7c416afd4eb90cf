"""Whether a process still lives: by when it began in the kernel's count, and by the clock where that was not written down."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest
from every_case import every_case

from holdfast.probe.alive import lives, same_process
from holdfast.signals.start_ticks import start_ticks

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")


def this_process(**other: Any) -> dict[str, Any]:
    here = socket.gethostname()
    return {"pid": os.getpid(), "started": time.time(), "host": here, "start_ticks": start_ticks(os.getpid()), **other}


@pytest.fixture
def clock_is_an_hour_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock was set forward after the process wrote when it began."""
    monkeypatch.setattr(psutil.Process, "create_time", lambda _self: time.time() + 3600)


@on_linux
@pytest.mark.usefixtures("clock_is_an_hour_ahead")
def test_a_clock_that_was_set_forward_ends_nobody() -> None:
    assert lives(this_process()) is True


@on_linux
def test_a_number_that_was_given_anew_is_told_by_the_count_whatever_the_clock_says() -> None:
    before = this_process()["start_ticks"] - 1
    assert lives(this_process(start_ticks=before)) is False
    assert lives(this_process(start_ticks=before, started=time.time() + 86400)) is False


@every_case("ticks", [None, "12", []])
def test_without_a_count_the_clock_decides(ticks: Any) -> None:
    assert lives(this_process(start_ticks=ticks)) is True
    assert lives(this_process(start_ticks=ticks, started=1000.0)) is False


def test_a_system_without_the_count_goes_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.probe.alive.start_ticks", lambda _pid: None)
    assert lives(this_process(start_ticks=5)) is True
    assert lives(this_process(start_ticks=5, started=1000.0)) is False


def test_nothing_is_said_about_another_machine() -> None:
    assert lives(this_process(host="elsewhere")) is None
    assert lives({}) is False


def test_one_that_has_ended_and_waits_to_be_buried_is_gone() -> None:
    with subprocess.Popen(["true"]) as process:
        deadline = time.monotonic() + 600
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.01)
        ticks = start_ticks(process.pid)
        assert same_process(process.pid, time.time(), None, ticks) is False
    assert same_process(process.pid, time.time(), None, ticks) is False
