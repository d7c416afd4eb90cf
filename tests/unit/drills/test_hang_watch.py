"""A drill ends a run that hangs for good, and none that a stall only held up: else hours are waited out, or a score is wrong."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

from holdfast.drills import hang_watch
from holdfast.drills.hang_watch import HangWatch, counted
from holdfast.signals.run_folder import RunFolder

STILL = 0.3


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setattr(hang_watch, "_STILL", STILL)
    monkeypatch.setattr(hang_watch, "_LOOK", 0.0)
    step_to(tmp_path, 5)
    return RunFolder.create(tmp_path, "run")


def step_to(drill: Path, number: int) -> None:
    (drill / "step-0").write_bytes(struct.pack("<q", number))


def ends_within(watched: HangWatch, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if watched.is_permanent():
            return True
        time.sleep(0.02)
    return False


def tell(run: RunFolder, severity: str = "critical") -> None:
    run.journal.write("finding", code="hang", severity=severity, step=5, evidence={})


def test_a_hang_that_was_told_and_after_which_no_step_came_is_for_good(run: RunFolder, tmp_path: Path) -> None:
    watched = HangWatch(run.path, tmp_path, unattended=True)
    assert not ends_within(watched, 2 * STILL), "nothing was told"
    tell(run)
    assert not watched.is_permanent(), "it was told just now"
    assert ends_within(watched, 20 * STILL)


def test_a_stall_that_passes_is_waited_out(run: RunFolder, tmp_path: Path) -> None:
    watched = HangWatch(run.path, tmp_path, unattended=True)
    tell(run)
    for number in range(6, 46):
        step_to(tmp_path, number)
        assert not watched.is_permanent()
        time.sleep(STILL / 20)


@pytest.mark.parametrize(("unattended", "severity"), [(False, "critical"), (True, "info")])
def test_what_somebody_else_ends_and_a_mere_remark_are_left_alone(
    run: RunFolder, tmp_path: Path, unattended: bool, severity: str
) -> None:
    watched = HangWatch(run.path, tmp_path, unattended=unattended)
    tell(run, severity)
    assert not ends_within(watched, 2 * STILL)


def test_a_count_that_is_not_there_or_half_written_is_none(tmp_path: Path) -> None:
    assert counted(tmp_path) == 0
    (tmp_path / "step-0").write_bytes(b"\1\0")
    assert counted(tmp_path) == 0
