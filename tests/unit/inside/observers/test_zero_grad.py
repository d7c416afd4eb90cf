"""A loop without `zero_grad` learns from the sum of all gradients, and nothing fails: it is told. Loops that zero are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.inside.arm import armed
from holdfast.signals.run_folder import RunFolder

STEPS = 30


def codes(folder: RunFolder) -> list[str]:
    armed().close_all()
    return [row["code"] for row in folder.journal if row["kind"] == "finding"]


def loss_of(model: nn.Module) -> torch.Tensor:
    loss: torch.Tensor = (model(torch.randn(8, 4)) - 1.0).square().mean()
    return loss


class ZeroesItself(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        self.zero_grad(set_to_none=False)


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("batches", [1, 3])
def test_gradients_that_are_never_zeroed_are_told(run: Callable[..., RunFolder], clips: bool, batches: int) -> None:
    folder = run()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    for _ in range(STEPS):
        for _ in range(batches):
            loss_of(model).backward()
        if clips:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert codes(folder) == ["gradients-not-zeroed"]


@pytest.mark.parametrize("to_none", [False, True])
@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("batches", [1, 3])
def test_loops_that_zero_are_left_alone(run: Callable[..., RunFolder], to_none: bool, clips: bool, batches: int) -> None:
    folder = run()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=to_none)
        for _ in range(batches):
            loss_of(model).backward()
        if clips:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert codes(folder) == []


def test_an_optimizer_that_zeroes_in_its_step_is_left_alone(run: Callable[..., RunFolder]) -> None:
    folder = run()
    model = nn.Linear(4, 1)
    optimizer = ZeroesItself(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        loss_of(model).backward()
        optimizer.step()
    assert codes(folder) == []


@pytest.mark.parametrize("to_none", [False, True])
def test_two_networks_against_each_other_are_left_alone(run: Callable[..., RunFolder], to_none: bool) -> None:
    folder = run()
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    first, second = (torch.optim.Adam(one.parameters(), lr=1e-3) for one in (generator, critic))
    for _ in range(STEPS):
        second.zero_grad(set_to_none=to_none)
        (critic(torch.randn(8, 4)).mean() - critic(generator(torch.randn(8, 4)).detach()).mean()).backward()
        second.step()
        first.zero_grad(set_to_none=to_none)
        critic(generator(torch.randn(8, 4))).mean().backward()  # leaves gradients in the critic, too
        first.step()
    assert codes(folder) == []
