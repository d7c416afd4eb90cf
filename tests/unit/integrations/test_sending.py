"""What is sent from a run's tables and journal: all of it once, whatever the tracker does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.integrations.sending import Cursor, End, Notice, Row, Sender


class Strict:
    """A tracker that keeps what it has taken, and can be told to fail."""

    takes_metrics = True
    address = "here"

    def __init__(self) -> None:
        self.values: list[tuple[str, int, float]] = []
        self.told: list[str] = []
        self.ends: list[tuple[str, str]] = []
        self.fails = False

    def _maybe_fail(self) -> None:
        if self.fails:
            raise ConnectionError("refused")

    def connect(self, run: Any, state: dict[str, Any]) -> None:
        self._maybe_fail()

    def metrics(self, rows: Sequence[Row], state: dict[str, Any]) -> None:
        self._maybe_fail()
        self.values += [(name, row.step, value) for row in rows for name, value in row.values.items()]

    def notice(self, notice: Notice, state: dict[str, Any]) -> None:
        self._maybe_fail()
        self.told.append(notice.text)

    def finish(self, end: End, state: dict[str, Any]) -> None:
        self._maybe_fail()
        assert end.report is not None
        self.ends.append((end.notice.code, end.report.read_text(encoding="utf-8")[:15]))

    def close(self) -> None:
        pass

    def of(self, name: str) -> list[int]:
        return [step for one, step, _ in self.values if one == name]


def sender(recorded: Any, tracker: Strict) -> Sender:
    return Sender(recorded.run, tracker, Cursor(recorded.run, "strict"))


def test_what_a_tracker_did_not_take_is_sent_later_and_nothing_twice(recorded: Any) -> None:
    tracker = Strict()
    for step in range(10):
        recorded.step(step)
    recorded.log(9, "accuracy", 0.5)
    recorded.find("loss-spike", "warning")
    sender(recorded, tracker).send()
    tracker.fails = True
    for step in range(10, 20):
        recorded.step(step)
    recorded.find("loss-spike", "warning", step=12)
    recorded.find("hang", step=13, say="worker 3 waits for a file")
    broken = sender(recorded, tracker)
    with pytest.raises(ConnectionError):
        broken.send()
    assert broken.failed(ConnectionError("refused")) == "ConnectionError: refused"
    assert Cursor(recorded.run, "strict").content["error"] == "ConnectionError: refused"
    tracker.fails = False
    recorded.end()
    again = sender(recorded, tracker)
    again.send()
    again.finish()
    assert tracker.of("train/loss") == list(range(20)) and tracker.of("val/accuracy") == [9]
    assert len(tracker.told) == 2 and "worker 3 waits" in tracker.told[1]
    assert tracker.ends == [("finished", "<!doctype html>")]
    last = sender(recorded, tracker)
    last.send()
    last.finish()
    assert len(tracker.of("train/loss")) == 20 and len(tracker.ends) == 1
    assert Cursor(recorded.run, "strict").content["error"] is None


def test_a_long_run_is_thinned_and_its_first_nan_is_not(recorded: Any) -> None:
    tracker = Strict()
    for step in range(5000):
        recorded.step(step, loss=math.nan if step == 4003 else 1.0)
        if step == 2500:
            sender(recorded, tracker).send()
    recorded.end()
    sender(recorded, tracker).send()
    steps = tracker.of("train/loss")
    assert steps[:1500] == list(range(1500)), "the beginning is sent whole"
    assert 3000 < len(set(steps)) == len(steps) < 3100
    assert 4003 in steps and max(steps) >= 4996


def test_the_loss_of_the_training_is_that_of_its_steps_and_own_values_have_their_split(recorded: Any) -> None:
    tracker = Strict()
    recorded.step(0)
    recorded.log(0, "loss", 3.0, split="train")
    recorded.log(0, "throughput", 4.0, split="train")
    sender(recorded, tracker).send()
    assert [value for value in tracker.values if value[0] in ("train/loss", "train/throughput")] == [
        ("train/loss", 0, 1.0),
        ("train/throughput", 0, 4.0),
    ]


def test_only_one_process_sends(recorded: Any) -> None:
    with Cursor(recorded.run, "strict").held() as first, Cursor(recorded.run, "strict").held() as second:
        assert first and not second
    with Cursor(recorded.run, "strict").held() as again:
        assert again
