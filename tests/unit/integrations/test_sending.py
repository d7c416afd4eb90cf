"""What is sent from a run's tables and journal: all of it once, whatever the tracker does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from holdfast.integrations.sending import Cursor, Sender
from holdfast.integrations.tracker import End, Notice, Row, Tracker


class Strict(Tracker):
    """A tracker that keeps what it has taken, and can be told to fail."""

    values: ClassVar[list[tuple[str, int, float]]] = []
    told: ClassVar[list[str]] = []
    ends: ClassVar[list[tuple[str, str]]] = []
    fails = False

    def metrics(self, rows: Sequence[Row]) -> None:
        if self.fails:
            raise ConnectionError("refused")
        self.values.extend((name, row.step, value) for row in rows for name, value in row.values.items())

    def notice(self, notice: Notice) -> None:
        self.told.append(notice.text)

    def finish(self, end: End) -> None:
        assert end.report is not None
        self.ends.append((end.notice.code, end.report.read_text(encoding="utf-8")[:15]))
        self.told.append(f"{end.notice.severity}: {end.notice.text}")


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> type[Strict]:
    for name in ("values", "told", "ends"):
        monkeypatch.setattr(Strict, name, [])
    monkeypatch.setattr(Strict, "fails", False)
    return Strict


def steps_of(tracker: type[Strict], name: str) -> list[int]:
    return [step for one, step, _ in tracker.values if one == name]


def sender(recorded: Any, tracker: type[Strict]) -> Sender:
    return Sender(recorded.run, tracker, Cursor(recorded.run, "strict"))


def test_what_a_tracker_did_not_take_is_sent_later_and_nothing_twice(recorded: Any, tracker: type[Strict]) -> None:
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
    assert steps_of(tracker, "train/loss") == list(range(20)) and steps_of(tracker, "val/accuracy") == [9]
    assert len(tracker.told) == 3 and "worker 3 waits" in tracker.told[1]
    assert tracker.told[2].startswith(
        "warning: run first: finished, but the training hangs from step 13, and 1 more: holdfast diagnose"
    )
    assert tracker.ends == [("finished", "<!doctype html>")]
    last = sender(recorded, tracker)
    last.send()
    last.finish()
    assert len(steps_of(tracker, "train/loss")) == 20 and len(tracker.ends) == 1
    assert Cursor(recorded.run, "strict").content["error"] is None


def test_a_long_run_is_thinned_and_its_first_nan_is_not(recorded: Any, tracker: type[Strict]) -> None:
    for step in range(5000):
        recorded.step(step, loss=math.nan if step == 4003 else 1.0)
        if step == 2500:
            sender(recorded, tracker).send()
    recorded.end()
    sender(recorded, tracker).send()
    steps = steps_of(tracker, "train/loss")
    assert steps[:1500] == list(range(1500)), "the beginning is sent whole"
    assert 3000 < len(set(steps)) == len(steps) < 3100
    assert 4003 in steps and max(steps) >= 4996


def test_the_loss_of_the_training_is_that_of_its_steps_and_own_values_have_their_split(
    recorded: Any, tracker: type[Strict]
) -> None:
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
