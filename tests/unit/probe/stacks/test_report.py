from __future__ import annotations

from pathlib import Path

import pytest
from made_stacks import in_all_reduce, rank, reading

from holdfast.errors import NoSuchRun
from holdfast.probe.stacks.frames import Frame
from holdfast.probe.stacks.keep import keep_stacks
from holdfast.probe.stacks.report import compare, report_on_process, report_on_run
from holdfast.signals.run_folder import RunFolder


@pytest.fixture
def over(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs", "run", started=1.0, ended=2.0)


def test_of_a_run_that_is_over_the_last_stacks_are_shown(over: RunFolder) -> None:
    keep_stacks(over, [in_all_reduce(0)], when=1000.0)
    keep_stacks(over, [in_all_reduce(0), reading(1)], when=2000.0)
    report = report_on_run(over)
    assert report.over and report.when == 2000.0 and report.verdict.evidence["missing"] == [1]


def test_of_a_run_that_is_over_and_has_none_it_says_what_can_be_asked(over: RunFolder) -> None:
    with pytest.raises(NoSuchRun, match="no stacks of it were kept") as caught:
        report_on_run(over)
    assert "holdfast diagnose" in caught.value.fix


def test_a_process_that_is_not_there_is_told_in_words() -> None:
    with pytest.raises(NoSuchRun, match="no process 4194999"):
        report_on_process(4194999)


def test_what_moved_and_what_stood_is_told_for_each_process() -> None:
    changes = compare([in_all_reduce(0), in_all_reduce(1)], [in_all_reduce(0), reading(1), in_all_reduce(2)])
    assert [(one.role, one.moved) for one in changes] == [("rank 0", False), ("rank 1", True)]
    assert changes[1].was == "average() (job/train.py:26)"


def test_a_process_that_is_read_in_another_way_has_not_moved_for_that() -> None:
    outside, inside = (
        rank(0, Frame(name, "/job/train.py", 12), Frame("<module>", "/job/train.py", 40)) for name in ("Net.f", "f")
    )
    assert [one.moved for one in compare([outside], [inside])] == [False]
