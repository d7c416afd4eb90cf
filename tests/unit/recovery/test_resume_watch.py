"""The watch after a resume, over real tables: when it begins, what it says, when it is over."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.recovery import judge as judging
from holdfast.recovery.judge import Judge
from holdfast.recovery.order import defaults
from holdfast.recovery.resume_reading import run_before
from holdfast.signals.lineage import Save
from holdfast.signals.run_folder import RunFolder

RATE = 0.01


class Story:
    """A run before, and one that goes on from it."""

    def __init__(self, folder: Path, train: Callable[..., Any]) -> None:
        self.train = train
        self.rng = np.random.default_rng(0)
        self.before, self.run = (RunFolder.create(folder, name) for name in ("first", "second"))
        self.first = self.train(self.before)
        self.first.steps(self.losses(0, 300), lr=RATE * 0.99 ** np.arange(300), epoch=np.arange(300) // 30)
        self.first.recorder.close()
        self.second = self.train(self.run)
        self.judge = Judge(self.run)

    def losses(self, begin: int, count: int) -> Any:
        return (0.2 + 2 * np.exp(-np.arange(begin, begin + count) / 60)) * np.exp(0.1 * self.rng.standard_normal(count))

    def resumed(self, rank: int = 0, **facts: Any) -> None:
        before = {"run": str(self.before.path), "recording": "rank-0", "step": 300, "time": time.time(), "exact": True}
        whole = {"of": 4, "missing": 0, "missing_statistics": 0, "unexpected": 0}
        row = {
            "path": "/last.pt",
            "weights": whole,
            "optimizer": "loaded",
            "scheduler": None,
            "before": before,
            "at": 300,
            **facts,
        }
        self.run.journal.write("checkpoint", event="resumed", rank=rank, step=0, recording=f"rank-{rank}", **row)

    def steps(self, begin: int, count: int, **columns: Any) -> None:
        rates = RATE * 0.99 ** (300 + self.second.step + np.arange(count))
        self.second.steps(self.losses(begin, count), **{"lr": rates, **columns})

    def rows(self, event: str = "resume-watch") -> list[dict[str, Any]]:
        return [row for row in self.run.journal if row.get("event") == event]

    def findings(self) -> list[dict[str, Any]]:
        return [row for row in self.run.journal if row["kind"] == "finding"]


@pytest.fixture
def story(tmp_path: Path, train_in: Callable[..., Any]) -> Story:
    return Story(tmp_path, train_in)


def test_a_healthy_resume_is_watched_for_500_steps(story: Story) -> None:
    story.resumed()
    for _ in range(6):
        story.judge.look()
        story.steps(300, 100)
    story.judge.look()
    begins, ends = story.rows()
    assert begins["verdict"] == "watching" and begins["against"]["run"] == "first" and begins["at"] == 300
    assert begins["against"]["step"] == 300 and begins["against"]["loss"] == pytest.approx(0.22, abs=0.03)
    assert (ends["verdict"], ends["after"], ends["step"], ends["over"]) == ("healthy", 500, 499, True)
    assert story.findings() == []


@pytest.mark.parametrize("at_once", [1, 7, 120])
def test_the_same_is_found_at_the_same_step_however_rows_come(story: Story, at_once: int) -> None:
    story.resumed(weights=None)
    for begin in range(0, 120, at_once):
        story.steps(begin, min(at_once, 120 - begin))
        story.judge.look()
    (finding,) = story.findings()
    assert (finding["code"], finding["severity"], finding["step"]) == ("resume-mismatch", "warning", 9)
    assert finding["evidence"]["suspects"] == ["weights"] and "verdict" not in finding["evidence"]
    assert [row["verdict"] for row in story.rows()] == ["watching", "warning"]
    (diagnosis,) = (row for row in story.run.journal if row["kind"] == "diagnosis")
    assert diagnosis["causes"] == ["weights-not-restored"]


def test_what_gets_worse_is_told_again_and_the_end_says_whether_it_came_back(story: Story) -> None:
    story.resumed()
    story.steps(300, 2, lr=RATE)
    story.second.steps(np.linspace(1.0, 1.2, 15), lr=RATE)
    story.judge.look()
    story.second.steps(np.linspace(2.4, 5.0, 60), lr=RATE)
    story.judge.look()
    story.steps(300, 40)
    story.judge.look(act=False)
    assert [finding["severity"] for finding in story.findings() if finding["code"] == "resume-mismatch"] == [
        "warning",
        "critical",
    ]
    assert [row["verdict"] for row in story.rows()] == ["watching", "warning", "explosion", "explosion"]
    end = story.rows()[-1]
    assert end["came_back"] is True and end["after"] == 117 and end["loss"] > 2


def test_ten_epochs_are_enough_but_never_fewer_than_fifty_steps(story: Story) -> None:
    story.resumed()
    story.steps(300, 300, epoch=np.arange(300) // 20)
    story.judge.look()
    assert story.rows()[-1]["after"] == 200

    short = Story(story.run.path.parent / "short", story.train)
    short.resumed()
    short.steps(300, 60, epoch=np.arange(60) // 2)
    short.judge.look()
    assert short.rows()[-1]["after"] == 50


def test_a_run_that_ends_at_once_is_not_judged(story: Story) -> None:
    story.resumed()
    story.steps(300, 12)
    story.judge.look(act=False)
    assert story.rows()[-1]["verdict"] == "unknown" and story.rows()[-1]["after"] == 12


def test_a_run_before_that_is_gone_is_said_and_only_an_explosion_is_told(story: Story) -> None:
    shutil.rmtree(story.before.path)
    story.resumed(weights=None)
    story.steps(0, 60)
    story.judge.look()
    assert [row["against"] for row in story.rows()] == [None] and story.findings() == []
    story.second.steps(np.full(30, np.nan))
    story.judge.look()
    assert [one["severity"] for one in story.findings() if one["code"] == "resume-mismatch"] == ["critical"]


def test_of_several_ranks_only_the_lowest_is_watched(story: Story) -> None:
    other = story.train(story.run, 1)
    story.resumed(rank=1)
    story.resumed()
    story.steps(300, 40)
    other.steps(story.losses(300, 40), lr=RATE)
    story.judge.look()
    assert [row["rank"] for row in story.rows()] == [0]


def test_a_watch_that_fails_is_told_and_the_run_is_judged_on(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("lost my mind")

    told: list[str] = []
    monkeypatch.setattr(judging.ResumeWatches, "look", fail)
    judge = Judge(story.run, on_trouble=lambda what, error: told.append(what))
    story.second.steps([0.2] * 100 + [np.nan] * 40, non_finite=[0] * 100 + [1] * 40)
    judge.look()
    judge.look()
    assert told == ["watching a resume"] and story.findings()[0]["code"] == "non-finite-weights"


def test_a_save_of_the_scripts_own_count_is_found_by_its_time(story: Story) -> None:
    run = RunFolder.create(story.run.path.parent, "third")
    training = story.train(run)
    training.steps(story.losses(0, 100), time=1000.0 + np.arange(100))
    training.recorder.close()
    for save, expected in [
        (Save(run.path, "rank-0", 4060, 1059.5), 60),  # the script counts from an earlier run on
        (Save(run.path, "rank-0", 60, 1059.5), 60),
        (Save(run.path, "rank-0", None, 1019.5), 20),
        (Save(run.path, "rank-0", 60, 1079.5, exact=False), 80),  # saved again, untold
        (Save(run.path, "rank-0", None, 0.0), 100),
    ]:
        found = run_before(save)
        assert found is not None and found[1] == expected and len(found[0].loss) == expected
    assert run_before(Save(run.path, "rank-7", 10, 0.0)) is None
    assert run_before(Save(run.path / "none", "rank-0", None, 5.0)) is None


def evaluated(training: Any, *values: float) -> None:
    """Epochs of 30 steps, each with an IoU at its end."""
    for value in values:
        training.steps(np.full(30, 0.3), lr=RATE)
        training.evaluate("iou", value)


@pytest.mark.parametrize("together", [True, False])
def test_a_resumed_run_that_loses_what_the_run_before_had_learned_is_rolled_back_to_its_checkpoint(
    tmp_path: Path, train_in: Callable[..., Any], letters_of: Callable[..., Any], together: bool
) -> None:
    """Its own first evaluations are the worst: without those of the run before nothing was lost."""
    before, run = (RunFolder.create(tmp_path, name) for name in ("first", "second"))
    first = train_in(before)
    evaluated(first, 0.3, 0.6, 0.7, 0.75, 0.74)
    save = {"run": str(before.path), "recording": "rank-0", "step": 150, "time": time.time(), "exact": True}
    second, judge = train_in(run), Judge(run, defaults())
    second.step = 150
    run.journal.write("checkpoint", event="resumed", rank=0, step=150, recording="rank-0", path="/last.pt", at=150, before=save)
    for value in (0.001, 0.0):
        evaluated(second, value)
        if not together:
            judge.look()
    judge.look()
    finding = next(row for row in run.journal if row["kind"] == "finding" and row["code"] == "metric-collapse")
    assert finding["evidence"]["before"] == 0.74 and finding["evidence"]["onset"] == 150
    (letter,) = letters_of(run)
    assert letter["action"] == "roll-back" and letter["settings"]["to"] == "disk"
    assert letter["settings"]["before"] == 149, "the state that was evaluated last before the resume"


def test_a_run_that_counts_its_steps_anew_is_not_compared_with_the_evaluations_of_the_run_before(
    tmp_path: Path, train_in: Callable[..., Any], letters_of: Callable[..., Any]
) -> None:
    before, run = (RunFolder.create(tmp_path, name) for name in ("first", "second"))
    evaluated(train_in(before), 0.3, 0.6, 0.7, 0.75, 0.74)
    save = {"run": str(before.path), "recording": "rank-0", "step": 150, "time": time.time(), "exact": True}
    second, judge = train_in(run), Judge(run, defaults())
    run.journal.write("checkpoint", event="resumed", rank=0, step=0, recording="rank-0", path="/last.pt", at=150, before=save)
    evaluated(second, 0.001, 0.0)
    judge.look()
    assert letters_of(run) == []
