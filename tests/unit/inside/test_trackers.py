"""Under `heal` a tracker that fails does not end a training; a mistake in the call still does."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from holdfast.inside.arm import armed
from holdfast.inside.trackers import Trackers
from holdfast.signals.run_folder import RunFolder


class MlflowException(Exception):
    """What MLflow raises when its server does not answer."""


class Tracker:
    """A module as MLflow's, and a clock."""

    def __init__(self) -> None:
        self.away, self.now, self.takes, self.logged = False, 0.0, 0.0, []
        outer = self

        class MlflowClient:
            def log_metric(self, run_id: str, key: str, value: float) -> None:
                if outer.away:
                    raise MlflowException("API request to http://10.0.0.5:5000 failed")
                outer.now += outer.takes
                outer.logged.append((key, float(value)))

        self.module: Any = ModuleType("mlflow.tracking.client")
        self.module.MlflowClient = MlflowClient
        Trackers(armed().session.saves.news, now=lambda: self.now).wrap(self.module)

    def log(self, value: Any) -> None:
        self.module.MlflowClient().log_metric("run", "loss", value)


def train() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def test_a_tracker_that_fails_is_left_out_told_once_and_tried_again(run: Callable[..., RunFolder]) -> None:
    folder = run("heal")
    train()
    tracker = Tracker()
    for now, away in ((0, False), (1, True), (2, True), (40, True), (60, False), (80, False), (81, False)):
        tracker.now, tracker.away = float(now), away
        tracker.log(now)
    assert [value for _, value in tracker.logged] == [0, 80, 81]  # at 60 it was not asked
    rows = list(folder.journal)
    (found,) = [row for row in rows if row["kind"] == "finding"]
    (done,) = [row for row in rows if row["kind"] == "action"]
    assert found["code"] == done["because"] == "tracker-unreachable" and "10.0.0.5" in found["evidence"]["error"]


@pytest.mark.parametrize("policy", ["observe", "guard"])
def test_where_nothing_may_be_repaired_the_script_gets_the_error(run: Callable[..., RunFolder], policy: str) -> None:
    folder = run(policy)
    train()
    tracker = Tracker()
    tracker.away = True
    for _ in range(2):
        with pytest.raises(MlflowException):
            tracker.log(1)
    assert [row["code"] for row in folder.journal if row["kind"] in ("finding", "action")] == ["tracker-unreachable"]


@pytest.mark.parametrize(("seconds", "told"), [(0.5, 0), (9.0, 1)])
def test_a_tracker_that_holds_the_training_up_is_told(run: Callable[..., RunFolder], seconds: float, told: int) -> None:
    folder = run()
    train()
    tracker = Tracker()
    tracker.takes = seconds
    tracker.log(1)
    found = [row for row in folder.journal if row["kind"] == "finding"]
    assert len(found) == told and all("held the training" in row["evidence"]["error"] for row in found)


def test_a_mistake_in_the_call_and_a_tracker_that_was_never_reached_are_the_scripts(run: Callable[..., RunFolder]) -> None:
    run("heal")
    tracker = Tracker()
    tracker.away = True
    with pytest.raises(MlflowException):  # before the first step
        tracker.log(1)
    train()
    tracker.away = False
    with pytest.raises(ValueError, match="could not convert"):
        tracker.log("a word")
