"""Times of the modules: they keep nothing of the script's alive, and a copy of a module runs without them."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from watched_process import Watching, sgd, small, train

from holdfast.inside.arm import armed
from holdfast.inside.observers import modules
from holdfast.inside.observers.memory import ProcessMemory
from holdfast.inside.observers.modules import BACKWARD, FORWARD, ModuleSampler


class Kept(torch.autograd.Function):
    """Saves its input for the backward pass, as most operations do."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(given)
        return given.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


class Keeping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.inner: list[weakref.ref[torch.Tensor]] = []

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        middle = self.layer(given)
        self.inner.append(weakref.ref(middle.untyped_storage()))
        return Kept.apply(middle)  # type: ignore[no-any-return, no-untyped-call]


@pytest.fixture
def sampler() -> ModuleSampler:
    return sampling()


def sampling() -> ModuleSampler:
    def on_trouble(what: str, error: BaseException) -> None:
        raise AssertionError(what) from error

    return ModuleSampler(ProcessMemory(), on_trouble)


CPU = torch.device("cpu")


def counted(times: list[Any]) -> dict[tuple[str, str], int]:
    pairs = [(name, stage) for name, stage, *_ in times]
    return {pair: pairs.count(pair) for pair in pairs}


def test_a_graph_that_the_script_throws_away_is_gone_while_modules_are_timed(sampler: ModuleSampler) -> None:
    model = Keeping()
    sampler.start([model], CPU)
    for _ in range(3):
        model(torch.ones(2, 4))
    gc.collect()
    assert [one() for one in model.inner] == [None] * 3
    sampler.stop()


def test_validation_passes_with_gradients_on_are_not_kept(watching: Watching) -> None:
    model = Keeping()
    train(model, sgd(model), 3)
    model.inner.clear()
    model.eval()
    for _ in range(3):
        model(torch.ones(2, 4))
    gc.collect()
    assert [one() for one in model.inner] == [None] * 3


def test_passes_in_evaluation_are_not_timed_and_the_step_still_is(watching: Watching) -> None:
    model = small()
    optimizer = sgd(model)
    train(model, optimizer, 3)
    model.eval()
    for _ in range(7):
        model(torch.ones(5, 4))
    model.train()
    train(model, optimizer, 1)
    rows = watching.close().table("modules").where(step=3)
    assert sorted((row["module"], row["stage"]) for row in rows) == sorted(
        (name, stage) for name in ("(model)", "0", "1", "2") for stage in (FORWARD, BACKWARD)
    )


def test_a_training_that_stays_in_evaluation_mode_is_timed_again(watching: Watching) -> None:
    model = small()
    optimizer = sgd(model)
    train(model, optimizer, 3)
    model.eval()
    train(model, optimizer, 3)
    assert watching.close().table("modules").where(step=4)


def test_forward_and_backward_are_timed_also_over_several_passes(sampler: ModuleSampler) -> None:
    model = small()
    sampler.start([model], CPU)
    for _ in range(2):
        model(torch.ones(5, 4)).sum().backward()
        sampler.end_backward()
    names = ("(model)", "0", "1", "2")
    assert counted(sampler.stop()) == {(name, stage): 2 for name in names for stage in (FORWARD, BACKWARD)}


def test_a_graph_that_outlives_the_sampled_step_leaves_no_times_in_a_later_one(sampler: ModuleSampler) -> None:
    model = small()
    sampler.start([model], CPU)
    kept = model(torch.ones(5, 4)).sum()
    sampler.stop()
    kept.backward(retain_graph=True)
    sampler.start([model], CPU)
    assert sampler.stop() == []


def test_timing_ends_after_a_number_of_passes(sampler: ModuleSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "_AT_MOST", 20)
    model = small()
    sampler.start([model], CPU)
    for _ in range(50):
        model(torch.ones(5, 4))
    assert 20 <= len(sampler.take()) <= 24
    model(torch.ones(5, 4))
    assert len(sampler.stop()) == 4


class OwnState(nn.Module):
    """A module that hands out its own state, hooks and all."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.layer(given)  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_a_copy_of_a_module_that_copies_its_hooks_runs_without_them(watching: Watching, copied: Any) -> None:
    model = OwnState()
    train(model, sgd(model), 3)
    assert any(training.sampler.running for training in armed().runtime.trainings)
    other = copied(model)
    assert torch.equal(other(torch.ones(5, 4)), model(torch.ones(5, 4)))
    assert torch.equal(copied(other)(torch.ones(5, 4)), model(torch.ones(5, 4)))
