"""An optimizer that dill has loaded has a copy of torch's class, which no hook reaches: its steps are recorded all the same."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import dill
import torch
from torch import nn

from holdfast.inside.arm import armed
from holdfast.inside.manual_updates import FIRST_LOOK
from holdfast.signals.run_folder import RunFolder


class Touchy:
    """Objects of torch warn whoever asks them for an attribute, such as `torch.distributed.reduce_op`."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)


def test_the_steps_and_the_learning_rate_of_an_optimizer_with_a_copied_class(run: Callable[..., RunFolder]) -> None:
    run("observe")
    thread = armed().runtime.thread
    thread.backwards, thread.look_at = 0, FIRST_LOOK  # as in a process that has just started
    made = nn.Linear(4, 1)
    model, optimizer = dill.loads(dill.dumps((made, torch.optim.Adam(made.parameters(), lr=0.25)), recurse=True))
    assert not isinstance(optimizer, torch.optim.Optimizer)
    touchy = [Touchy()]
    for _ in range(20):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert gc.is_tracked(touchy[0])
    (training,) = armed().runtime.trainings
    main = training.main_optimizer()
    assert main is not None and main.param_groups[0]["lr"] == 0.25
    assert max(state["step"] for state in main.state.values()) == 20
    armed().close_all()
    assert training.step == 20
