"""What a drill hangs into a training does not get into what the training saves."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from holdfast.drills.injection.context import FaultContext
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


def test_the_model_of_an_ensemble_is_the_member_that_the_optimizer_trains(tmp_path: Path) -> None:
    members = nn.ModuleDict({name: nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)) for name in "ab"})
    context = FaultContext(tmp_path, 0)
    assert context.is_main(torch.optim.SGD(members["b"].parameters(), lr=0.1))
    assert context.model is members["b"] and len(context.weights()) == 2


def test_layers_that_are_frozen_belong_to_the_model(tmp_path: Path) -> None:
    model = nn.ModuleDict({"body": nn.Linear(2, 3).requires_grad_(False), "head": nn.Linear(3, 2)})
    context = FaultContext(tmp_path, 0)
    assert context.is_main(torch.optim.SGD(model["head"].parameters(), lr=0.1))
    assert context.model is model


def test_a_fault_in_the_weights_meets_those_that_are_trained(tmp_path: Path) -> None:
    context = FaultContext(tmp_path, 0)
    model = nn.Sequential(nn.utils.weight_norm(nn.Conv1d(2, 3, 3)), nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].requires_grad_(False)  # an average of the weights, or the frozen part of a model with adapters
    context.is_main(torch.optim.SGD([p for p in model.parameters() if p.requires_grad]))
    assert [layer for _, layer in context.layers()] == [model[0], model[2]]
    assert [id(weight) for weight in context.weights()] == [id(model[0].weight_v), id(model[2].weight)]
