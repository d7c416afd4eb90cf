"""The state of a training: found, read, and put back so that it goes on bit for bit as it did the first time."""

from __future__ import annotations

import copy
import gc
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from every_case import every_case
from kept_state import kept as kept_copy
from store_loop import assert_same
from torch import nn
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from holdfast.errors import CannotRestore
from holdfast.state.training_state import TrainingState

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "AdamW loop": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "AdamW tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2), foreach=False),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3, history_size=4),
}

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "OneCycleLR": lambda o: schedules.OneCycleLR(o, max_lr=0.05, total_steps=100),
    "warm restarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, T_0=7, T_mult=2),
    "LambdaLR": lambda o: schedules.LambdaLR(o, lambda step: 0.97**step),
    "MultiStepLR": lambda o: schedules.MultiStepLR(o, milestones=[10, 25, 30]),
    "CyclicLR": lambda o: schedules.CyclicLR(o, 1e-4, 1e-2, step_size_up=5),
    "ReduceLROnPlateau": lambda o: schedules.ReduceLROnPlateau(o, patience=1, threshold=0.2),
    "SequentialLR": lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, 0.1, total_iters=25), schedules.ExponentialLR(o, 0.98)], milestones=[25]
    ),
    "ChainedScheduler": lambda o: schedules.ChainedScheduler(
        [schedules.ConstantLR(o, 0.5, total_iters=30), schedules.ExponentialLR(o, 0.97)]
    ),
}


class Net(nn.Module):
    """Tied weights, BatchNorm, a frozen part, a parameter that never gets a gradient, and a mask that is infinite on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.tied = nn.Linear(8, 8)
        self.tied.weight = self.second.weight
        self.last, self.drop = nn.Linear(8, 3), nn.Dropout(0.1)
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("mask", torch.full((2,), -torch.inf), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x)).relu()
        return self.last(self.drop(self.tied(self.frozen(self.second(x)).relu())))


class Loop:
    """A small real training that can be run from any step to any other, on the same batches."""

    def __init__(self, optimizer: str = "Adam", scheduler: str = "", *, scaler: bool = False, average: bool = False) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.scheduler = SCHEDULERS[scheduler](self.optimizer) if scheduler else None
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=7) if scaler else None
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9)) if average else None
        self.x, self.y = torch.randn(60, 16, 6), torch.randint(0, 3, (60, 16))

    def _loss(self, number: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(self.x[number]), self.y[number])

    def run(self, begin: int, end: int, between: Callable[[int], Any] = lambda number: None) -> None:
        for number in range(begin, end):
            between(number)
            torch.manual_seed(number)  # dropout
            self.optimizer.zero_grad()
            if isinstance(self.optimizer, torch.optim.LBFGS):
                loss = self.optimizer.step(lambda number=number: self._backward(number))
            else:
                loss = self._backward(number)
                if self.scaler is not None:
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
                else:
                    self.optimizer.step()
            if isinstance(self.scheduler, schedules.ReduceLROnPlateau):
                self.scheduler.step(loss.detach())
            elif self.scheduler is not None:
                self.scheduler.step()
            if self.average is not None:
                self.average.update_parameters(self.model)

    def _backward(self, number: int) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self._loss(number)
        (self.scaler.scale(loss) if self.scaler else loss).backward()
        return loss

    def everything(self) -> dict[str, Any]:
        parts: dict[str, Any] = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": {k: v for k, v in self.scheduler.state_dict().items() if not callable(v)} if self.scheduler else {},
            "scaler": self.scaler.state_dict() if self.scaler else {},
            "average": self.average.state_dict() if self.average else {},
        }
        return copy.deepcopy(parts)


def state_of(loop: Loop) -> TrainingState:
    gc.collect()  # of a scaler nobody knows whose it is: those of the tests before must be gone
    return TrainingState.discover([loop.model], [loop.optimizer])


def there_and_back(loop: Loop, *, at: int = 20, end: int = 40) -> None:
    """Train to `at`, keep the state, train on, restore it, train again: the same to the last bit."""
    loop.run(0, at)
    state = state_of(loop)
    before, kept = loop.everything(), kept_copy(state)
    loop.run(at, end)
    first = loop.everything()
    with pytest.raises(AssertionError):
        assert_same(before, first)
    state.restore(kept.tree, kept.hosts)
    assert_same(before, loop.everything())
    loop.run(at, end)
    assert_same(first, loop.everything())


@every_case("optimizer", OPTIMIZERS)
def test_a_restored_training_goes_on_bit_for_bit_with_each_optimizer(optimizer: str) -> None:
    there_and_back(Loop(optimizer))


@every_case("scheduler", SCHEDULERS)
def test_a_restored_training_goes_on_bit_for_bit_with_each_scheduler(scheduler: str) -> None:
    loop = Loop("SGD momentum", scheduler)
    there_and_back(loop)


def test_scaler_and_average_are_restored_too() -> None:
    there_and_back(Loop("AdamW foreach", "OneCycleLR", scaler=True, average=True))


def test_the_state_from_before_the_first_step_has_no_optimizer_state_again() -> None:
    loop = Loop("Adam", "OneCycleLR", scaler=True)
    there_and_back(loop, at=0, end=20)


def test_two_optimizers_are_restored_together() -> None:
    torch.manual_seed(0)
    models = [nn.Linear(4, 4), nn.Linear(4, 1)]
    optimizers = [torch.optim.Adam(models[0].parameters()), torch.optim.SGD(models[1].parameters(), lr=0.1, momentum=0.9)]
    batches = torch.randn(40, 8, 4)

    def train(begin: int, end: int) -> list[Any]:
        for number in range(begin, end):
            models[1](models[0](batches[number])).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        return copy.deepcopy([thing.state_dict() for thing in (*models, *optimizers)])

    train(0, 20)
    state = TrainingState.discover(models, optimizers)
    kept = kept_copy(state)
    first = train(20, 40)
    state.restore(kept.tree, kept.hosts)
    assert_same(first, train(20, 40))


def test_values_are_put_back_into_the_tensors_that_are_there() -> None:
    loop = Loop("Adam")
    loop.run(0, 3)
    state = state_of(loop)
    kept = kept_copy(state)
    lists = [group["params"] for group in loop.optimizer.param_groups]
    addresses = [tensor.data_ptr() for tensor in (*loop.model.parameters(), *loop.model.buffers())]
    moments = {id(value) for entry in loop.optimizer.state.values() for value in entry.values()}
    loop.run(3, 6)
    state.restore(kept.tree, kept.hosts)
    assert addresses == [tensor.data_ptr() for tensor in (*loop.model.parameters(), *loop.model.buffers())]
    assert all(a is b["params"] for a, b in zip(lists, loop.optimizer.param_groups, strict=True))
    assert moments == {id(value) for entry in loop.optimizer.state.values() for value in entry.values()}


def test_frozen_parameters_and_buffers_that_are_not_saved_are_restored() -> None:
    loop = Loop("Adam")
    state = state_of(loop)
    kept = kept_copy(state)
    frozen = loop.model.frozen.weight.clone()
    with torch.no_grad():
        loop.model.frozen.weight.zero_()
        loop.model.mask.zero_()
    state.restore(kept.tree, kept.hosts)
    assert torch.equal(loop.model.frozen.weight, frozen)
    assert torch.isinf(loop.model.mask).all()


def test_generators_are_restored_only_when_asked_for() -> None:
    loop = Loop("SGD")
    state = state_of(loop)
    kept = kept_copy(state)
    draw = lambda: (torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random())  # noqa: E731
    first = draw()
    state.restore(kept.tree, kept.hosts)
    assert draw() != first
    state.restore(kept.tree, kept.hosts, randomness=True)
    assert draw() == first


def test_reading_the_state_moves_no_generator() -> None:
    loop = Loop("Adam", "OneCycleLR", average=True)
    states = [torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()]
    state_of(loop).read()
    assert torch.equal(states[0], torch.get_rng_state())
    assert (states[1] == np.random.get_state()[1]).all() and states[2] == random.getstate()


def test_a_state_that_does_not_fit_is_refused_before_anything_is_changed() -> None:
    loop = Loop("Adam")
    loop.run(0, 2)
    state = state_of(loop)
    kept = kept_copy(state)
    loop.run(2, 4)
    loop.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    before = loop.everything()
    with pytest.raises(CannotRestore, match="parameter groups"):
        state.restore(kept.tree, kept.hosts)
    assert_same(before, loop.everything())


def test_nothing_is_kept_alive() -> None:
    loop = Loop("Adam", "OneCycleLR", scaler=True, average=True)
    loop.run(0, 1)
    state = state_of(loop)
    kept = kept_copy(state)
    del loop
    gc.collect()
    assert not state.alive()
    assert kept.hosts


def test_only_what_belongs_to_this_training_is_found() -> None:
    mine, other = Loop("Adam", "SequentialLR", average=True), Loop("SGD", "OneCycleLR", average=True)
    other.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    tree = state_of(mine).read().tree
    assert len(tree["schedulers"]) == 1 and "_milestones" in tree["schedulers"][0]
    assert not state_of(mine).missing()
    del other
