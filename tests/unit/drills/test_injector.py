"""What a drill hangs into a training does not get into what the training saves."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from holdfast.drills.injection.injector import Injector
from holdfast.drills.plan import Plan, Planned
from holdfast.inside.observers.modules import without_hooks


def test_a_model_that_is_pickled_whole_keeps_its_own_hooks_and_goes_without_those_of_a_fault(tmp_path: Path) -> None:
    injector = Injector(Plan(faults=(Planned(code="memory-leak", step=1),), folder=tmp_path))
    model = nn.Linear(2, 2)
    model.register_forward_hook(torch.nn.functional.relu)
    model.register_forward_hook(injector._output)
    model.register_forward_pre_hook(injector._inputs, with_kwargs=True)
    state = without_hooks(vars(model))
    assert list(state["_forward_hooks"].values()) == [torch.nn.functional.relu] and not state["_forward_pre_hooks"]
