"""The judge goes on: after a training that ended with a letter unanswered, and after a disk that was full for a while."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.recovery.judge import Judge
from holdfast.recovery.order import defaults
from holdfast.signals.run_folder import RunFolder


def rows_of(run: RunFolder, kind: str) -> list[dict[str, Any]]:
    return [row for row in run.journal if row["kind"] == kind]


def states(run: RunFolder) -> list[tuple[int, str]]:
    return [(row["number"], row["state"]) for row in rows_of(run, "action")]


def codes(run: RunFolder) -> list[str]:
    return [row["code"] for row in rows_of(run, "finding") if row["severity"] != "info"]


@pytest.fixture
def diverged(falling: Any) -> Any:
    return [*falling(600), *np.full(40, 2.4)]


@pytest.fixture
def lives_in() -> Iterator[Callable[[Any], subprocess.Popen[bytes]]]:
    """Give a training a process of its own."""
    started: list[subprocess.Popen[bytes]] = []

    def start(training: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        path: Path = training.recorder.recording.path / "process.json"
        path.write_text(json.dumps({"pid": started[-1].pid, "host": socket.gethostname(), "started": time.time()}))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


# A letter that nobody is left to answer


def test_a_letter_of_a_training_that_ended_is_given_up_and_the_next_training_is_judged(
    run: RunFolder, train: Any, letters: Any, diverged: Any
) -> None:
    judge = Judge(run, defaults())
    train().steps(diverged)
    judge.look()
    assert states(run) == [(1, "posted")]
    second = train()
    judge.look()
    (refused,) = [row for row in rows_of(run, "action") if row["state"] == "refused"]
    assert (refused["number"], refused["detail"]) == (1, "the training is over")
    assert len(letters()) == 1, "nothing more is decided for a training that is over"
    second.holds_snapshots(450, 500, 550)
    second.steps(diverged)
    judge.look()
    assert codes(run) == ["loss-divergence", "loss-divergence"]
    assert (letters()[1]["action"], letters()[1]["settings"]["to"]) == ("roll-back", 550), "the one before was never tried"


def test_a_letter_is_given_up_when_the_process_is_gone_and_the_next_attempt_is_judged(
    run: RunFolder, train: Any, letters: Any, diverged: Any, lives_in: Any
) -> None:
    training, judge = train(), Judge(run, defaults())
    process = lives_in(training)
    training.steps(diverged)
    judge.look()
    judge.look()
    assert states(run) == [(1, "posted")]
    process.kill()
    process.wait()
    judge.look()
    assert states(run) == [(1, "posted"), (1, "refused")] and len(letters()) == 1
    lives_in(again := train())
    again.steps(diverged)
    judge.look()
    assert states(run)[2:] == [(2, "posted")]


def test_after_a_restart_evaluations_and_losses_are_compared_with_those_of_the_beginning(
    run: RunFolder, train: Any, falling: Any, lives_in: Any
) -> None:
    judge, losses = Judge(run, defaults()), falling(600)

    def go_on(training: Any, *values: float) -> None:
        for value in values:
            training.steps(losses[training.step : training.step + 40])
            training.evaluate("loss", value)

    lives_in(first := train())
    go_on(first, 0.66, 0.29, 0.17, 0.095, 0.15, 0.08)
    judge.look()
    lives_in(train())  # failed before its first step
    lives_in(again := train())
    again.step = 160
    for _ in range(4):
        again.evaluate("loss", 0.095)  # while it is fast-forwarded: again and again the same state
    go_on(again, 0.081, 0.14, 0.07, 0.058, 0.15, 0.12)
    judge.look()
    assert codes(run) == []
    go_on(again, 0.61, 0.62)
    judge.look()
    assert codes(run) == ["metric-collapse"]


def test_an_answer_that_was_given_just_before_the_end_counts(
    run: RunFolder, train: Any, letters: Any, diverged: Any, lives_in: Any
) -> None:
    training, judge = train(), Judge(run, defaults())
    process = lives_in(training)
    training.steps(diverged)
    judge.look()
    training.answers(letters()[0], "refused")
    process.kill()
    process.wait()
    judge.look()
    assert states(run) == [(1, "posted"), (1, "refused")] and len(letters()) == 1


def test_a_training_beside_another_process_that_begins_one_is_waited_for(
    run: RunFolder, train: Any, letters: Any, diverged: Any, lives_in: Any
) -> None:
    training, judge = train(), Judge(run, defaults())
    lives_in(training)
    training.steps(diverged)
    judge.look()
    lives_in(train())
    judge.look()
    assert states(run) == [(1, "posted")]


def test_nothing_is_posted_to_a_process_that_is_gone(
    run: RunFolder, train: Any, letters: Any, diverged: Any, lives_in: Any
) -> None:
    training = train()
    process = lives_in(training)
    training.steps(diverged)
    process.kill()
    process.wait()
    Judge(run, defaults()).look()
    assert codes(run) == ["loss-divergence"] and letters() == []


# A disk that was full for a while


def test_what_the_journal_did_not_take_is_told_and_done_at_a_later_look(
    run: RunFolder, train: Any, letters: Any, falling: Any
) -> None:
    told: list[str] = []
    training, judge = train(), Judge(run, defaults(), on_trouble=lambda what, error: told.append(what))
    training.steps([*falling(600), *np.full(40, 2.4)])
    run.journal.path.mkdir()
    before = time.time()
    judge.look()
    after = time.time()
    judge.look()
    assert set(told) == {"writing to the journal"} and letters() == [], "what cannot be told is not done"
    run.journal.path.rmdir()
    judge.look()
    judge.look()
    assert codes(run) == ["loss-divergence"] and len(letters()) == 1 and states(run) == [(1, "posted")]
    assert before - 0.01 <= rows_of(run, "finding")[0]["time"] <= after + 0.01, "when it was found"


def test_a_letter_that_did_not_fit_on_the_disk_goes_out_when_there_is_room(
    run: RunFolder, train: Any, letters: Any, diverged: Any
) -> None:
    told: list[str] = []
    queue = run.path / "action_queue.jsonl"
    judge = Judge(run, defaults(), on_trouble=lambda what, error: told.append(f"{what}: {error}"))
    train().steps(diverged)
    queue.symlink_to("/dev/full")
    judge.look()
    judge.look()
    assert "posting an action" in told[0] and "No space left" in told[0]
    queue.unlink()
    judge.look()
    judge.look()
    assert [letter["action"] for letter in letters()] == ["roll-back"] and states(run) == [(1, "posted")]


def test_an_action_queue_that_can_never_be_written_does_not_end_the_judgement(run: RunFolder, train: Any, diverged: Any) -> None:
    clock = [0.0]
    training, judge = train(), Judge(run, defaults(), now=lambda: clock[0])
    (run.path / "action_queue.jsonl").mkdir()
    training.steps(diverged)
    for _ in range(10):
        judge.look()
        clock[0] += 61.0
    assert next(row["detail"] for row in rows_of(run, "action") if row["state"] == "refused") == "it could not be posted"
    training.steps(np.full(16, math.nan), non_finite=3)
    judge.look()
    assert codes(run) == ["loss-divergence", "non-finite-weights"]


def test_a_training_whose_answer_the_full_disk_may_have_eaten_is_not_said_to_be_silent(
    run: RunFolder, train: Any, letters: Any, diverged: Any
) -> None:
    clock = [0.0]
    training, judge = train(), Judge(run, defaults(), now=lambda: clock[0])
    training.steps(diverged)
    judge.look()
    kept = run.journal.path.rename(run.path / "kept")
    run.journal.path.mkdir()
    training.steps(np.full(100, 0.1))
    clock[0] = 61.0
    judge.look()
    run.journal.path.rmdir()
    kept.rename(run.journal.path)
    judge.look()
    assert states(run) == [(1, "posted")]
    training.answers(letters()[0])
    judge.look()
    assert states(run) == [(1, "posted"), (1, "done")] and len(letters()) == 1
