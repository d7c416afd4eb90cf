"""What is saved and restored is what trains now: an optimizer that is made again takes the place of the one before."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import holdfast
from holdfast.inside.arm import armed
from holdfast.inside.guard.skipping import Averages
from holdfast.inside.run_checkpoints import RecordedState
from holdfast.signals.run_folder import RunFolder
from holdfast.state.checkpoint_parts import write_whole


class Loop:
    def __init__(self) -> None:
        self.model = nn.Linear(4, 2)
        self.make_again()

    def make_again(self) -> None:
        self.optimizer: torch.optim.Optimizer | None = None
        gc.collect()
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def train(self, steps: int) -> None:
        assert self.optimizer is not None
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.randn(8, 4)).square().mean().backward()
            self.optimizer.step()


def test_an_optimizer_that_is_made_again_is_found(run: Callable[..., RunFolder]) -> None:
    run()
    loop = Loop()
    loop.train(2)
    recorded, training = RecordedState(Averages()), armed().runtime.trainings[0]
    first = recorded.of_training(training)
    assert first is recorded.of_training(training), "discovered once"
    loop.make_again()
    loop.train(2)
    again = recorded.of_training(training)
    assert again.optimizers() == [loop.optimizer]
    assert again is recorded.of_training(training)


def test_a_roll_back_restores_the_moments_of_an_optimizer_that_was_made_again(run: Callable[..., RunFolder]) -> None:
    run("heal")
    loop = Loop()
    loop.train(12)
    loop.make_again()
    loop.train(3)
    control = armed().runtime.trainings[0].control
    assert control is not None and loop.optimizer is not None
    step = armed().runtime.trainings[0].step
    assert control.snapshots.take(step)
    moments = loop.optimizer.state[loop.model.weight]["exp_avg"].clone()
    loop.train(3)
    control.snapshots.restore(step)
    assert loop.optimizer.state[loop.model.weight]["exp_avg"].equal(moments)


@pytest.mark.usefixtures("alone", "raising")
def test_what_run_save_saves_has_the_optimizer_that_was_made_again() -> None:
    loop = Loop()
    with holdfast.watch(loop.model) as run:
        for _ in range(5):  # at the same address as often as not
            loop.train(2)
            run.save(wait=True)
            state = run._run_checkpoints().state(armed().runtime.trainings[-1])
            assert state.optimizers() == [loop.optimizer]
            loop.make_again()


@pytest.mark.usefixtures("alone", "raising")
def test_a_save_is_skipped_while_the_one_before_is_being_written(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, written = Loop(), threading.Event()

    def slow(*arguments: Any, **more: Any) -> Any:
        written.wait(60)
        return write_whole(*arguments, **more)

    monkeypatch.setattr("holdfast.state.saver.write_whole", slow)  # a slow disk
    with holdfast.watch(loop.model) as run:
        loop.train(1)
        first = run.save()
        loop.train(1)
        assert run.save(skip_if_busy=True) is None
        written.set()
        last = run.save(wait=True, skip_if_busy=False)
        loop.train(1)
        assert first is not None and last is not None and first.exists() and last.exists()
        assert run.save(skip_if_busy=True) is not None
