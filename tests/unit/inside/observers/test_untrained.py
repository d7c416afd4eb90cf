"""Which parameters an update does not reach, and why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from holdfast.inside.discovery import Models


def _models(model: nn.Module) -> Models:
    recorder: Any = SimpleNamespace(strings=SimpleNamespace(codes=lambda names: list(range(len(names)))))
    models = Models(recorder)
    models.learn([model])
    return models


def _said(models: Models, main: list[nn.Parameter], others: list[nn.Parameter] | None = None) -> dict[int, str]:
    changes = models.newly_untrained(main, others or [])
    assert all(change.position == change.name and change.of == 3 for change in changes)
    return {change.name: change.why for change in changes}


def _model() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model(torch.ones(1, 2)).sum().backward()
    return model


def test_each_reason_is_told_apart_and_only_changes_are_said() -> None:
    model = _model()
    models = _models(model)
    model[0].weight.requires_grad_(False)
    model[1].weight.grad = None
    held = [model[0].weight, model[1].weight]
    assert _said(models, held) == {0: "frozen", 1: "no-gradient", 2: "no-optimizer"}
    assert _said(models, held) == {}
    model[1].weight.grad = torch.ones(2, 2)
    assert _said(models, held) == {1: "trained"}


def test_all_trained_says_nothing() -> None:
    model = _model()
    assert _said(_models(model), list(model.parameters())) == {}


def test_what_another_optimizer_holds_is_its_own() -> None:
    model = _model()
    model[2].weight.grad = None
    assert _said(_models(model), [model[0].weight, model[1].weight], [model[2].weight]) == {}


def test_a_gradient_that_stays_0_as_no_pass_reaches_it_is_none_and_one_of_dead_units_is_one() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    models, optimizer = _models(model), torch.optim.SGD(model.parameters(), lr=0.1)
    backwards = 0

    def trained(steps: int, *, cut: bool) -> dict[int, str]:
        nonlocal backwards
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=False)
            inner = model[0](torch.ones(1, 2))
            model[2](torch.relu(model[1](inner.detach() if cut else inner) - 1e3) + 1.0).sum().backward()
            backwards += 1
        changes = models.newly_untrained(list(model.parameters()), [], backwards)
        return {change.name: change.why for change in changes}

    assert trained(1, cut=False) == {}
    assert trained(20, cut=False) == {}, "the units before the last layer are dead: their gradients are 0, and there"
    assert trained(20, cut=True) == {0: "no-gradient"}
    assert trained(20, cut=False) == {0: "trained"}


def test_a_parameter_whose_module_never_runs_is_told_from_one_that_gets_no_gradient() -> None:
    model = _model()
    model[0].weight.grad = model[2].weight.grad = None
    changes = _models(model).newly_untrained(list(model.parameters()), [], ran={"", "0", "1"})
    assert {change.name: change.why for change in changes} == {0: "no-gradient", 2: "unused"}
