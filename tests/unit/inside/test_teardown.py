"""A training that is over is closed while its process goes on; one that something is left of is not."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from holdfast_run import wait_until
from torch import nn

from holdfast.inside.arm import armed
from holdfast.inside.scope import Scope
from holdfast.probe.control_client import listening
from holdfast.probe.state import read_state
from holdfast.signals.run_folder import RunFolder

Start = Callable[..., RunFolder]


@pytest.fixture(autouse=True)
def no_garbage() -> Iterator[None]:
    gc.collect()
    yield
    gc.collect()


def train(*modules: nn.Module, steps: int = 3) -> torch.optim.Optimizer:
    whole = nn.Sequential(*modules)
    optimizer = torch.optim.Adam(whole.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        whole(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
    return optimizer


def parts() -> list[str]:
    return [training.recorder.recording.name for training in armed().runtime.trainings]


def closed(training: Any) -> bool:
    return bool(training.recorder._closed) and not training.recorder._thread.is_alive()


@pytest.mark.parametrize("policy", ["observe", "heal"])
def test_one_that_is_over_is_closed_when_the_next_begins(run: Start, policy: str) -> None:
    folder = run(policy)
    train(nn.Linear(4, 4))
    (first,) = armed().runtime.trainings
    assert parts() == ["rank-0"], "the newest stays: there may be more to tell of it"
    kept = train(nn.Linear(4, 4))
    assert parts() == ["rank-0.1"]
    wait_until(lambda: closed(first))
    assert [id(optimizer()) for optimizer, _ in armed().runtime.of_optimizer.values()] == [id(kept)]
    assert all(training is not first for _, training in armed().runtime.whole_models.values())
    assert [one.name for one in listening(folder)] == ["rank-0.1"]
    state = read_state(folder)
    assert state.alive and [(rank.part, rank.alive) for rank in state.ranks] == [(1, True)]
    assert not state.findings


def test_one_that_ends_later_is_closed_within_seconds(run: Start) -> None:
    run()
    first, second = train(nn.Linear(4, 4)), train(nn.Linear(4, 4), steps=20)
    assert parts() == ["rank-0", "rank-0.1"]
    del first
    gc.collect()
    wait_until(lambda: parts() == ["rank-0.1"])
    assert second.param_groups


def test_a_model_that_is_kept_keeps_its_training_open(run: Start) -> None:
    run()
    backbone = nn.Linear(4, 4)
    train(backbone, nn.Linear(4, 4))
    other = train(nn.Linear(4, 4))
    assert parts() == ["rank-0", "rank-0.1"]
    train(backbone, nn.Linear(4, 4))
    assert parts() == ["rank-0", "rank-0.1"], "it goes on"
    assert other.param_groups


def test_steps_are_counted_from_the_beginning_in_every_training(run: Start) -> None:
    run()
    scope: Scope = armed().runtime.scopes[0]
    scope.first_step = 100
    for _ in range(3):
        train(nn.Linear(4, 4))
    assert armed().runtime.trainings[-1].step == 3
