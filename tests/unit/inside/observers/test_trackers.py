"""A tracker that holds the training up is named with the function that was called; other waits are not its fault."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from holdfast.inside.arm import armed
from holdfast.inside.observers.heartbeat import HEARTBEAT
from holdfast.inside.observers.trackers import Trackers
from holdfast.signals.run_folder import RunFolder

CODE = """
def log_metric(name, value, inside, leave):
    store.write(inside, leave)
"""
STORE = """
def write(inside, leave):
    inside.set()
    leave.wait(600)
"""


def module(name: str, code: str, **known: Any) -> Any:
    made = ModuleType(name)
    vars(made).update(known)
    exec(code, vars(made))
    return made


def train() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("package", "inner", "seconds", "told"),
    [
        ("mlflow.tracking.fluent", "sqlalchemy.engine", 9.0, "sqlalchemy"),
        ("mlflow.tracking.fluent", "urllib3.connection", 9.0, "urllib3"),
        ("mlflow.tracking.fluent", "urllib3.connection", 3.0, None),
        ("metrics_of_mine", "urllib3.connection", 9.0, None),
    ],
)
def test_a_tracker_that_holds_the_training_is_told_with_its_function(
    run: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch, package: str, inner: str, seconds: float, told: str | None
) -> None:
    folder = run()
    train()
    tracker = module(package, CODE, store=module(inner, STORE))
    inside, leave = threading.Event(), threading.Event()
    waiting = threading.Thread(target=tracker.log_metric, args=("loss", 0.5, inside, leave))
    waiting.start()
    inside.wait(600)
    monkeypatch.setattr(HEARTBEAT, "_thread", waiting.ident)
    now = [0.0]
    watch = Trackers(armed().runtime.saves.checkpoint_log, now=lambda: now[0])
    try:
        for now[0] in (0.0, 0.5, seconds, seconds + 1):
            watch.look()
    finally:
        leave.set()
        waiting.join(600)
    found = [row["evidence"] for row in folder.journal if row["kind"] == "finding"]
    if told is None:
        assert found == []
    else:
        (evidence,) = found
        assert evidence["error"] == "mlflow.log_metric held the training for 9.0 s" and evidence["waits_in"] == told


def test_a_training_that_goes_on_is_not_looked_at(run: Callable[..., RunFolder]) -> None:
    folder = run()
    train()
    now = [0.0]
    watch = Trackers(armed().runtime.saves.checkpoint_log, now=lambda: now[0])
    for now[0] in (0.0, 10.0, 20.0):
        watch.look()
        HEARTBEAT.beat()
    assert [row for row in folder.journal if row["kind"] == "finding"] == []
