"""Finding the models of a training, and the names of their parts."""

from __future__ import annotations

import torch
from every_case import every_case
from torch import nn

from holdfast.inside.discovery import find_live_objects, find_roots, named, plain_name


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


@every_case(
    ("wrapped", "plain"),
    [
        ("module.layer.weight", "layer.weight"),
        ("_orig_mod.layer.weight", "layer.weight"),
        ("module._orig_mod.layer.weight", "layer.weight"),
        ("layer._orig_mod.weight", "layer.weight"),
        ("layers.0._fsdp_wrapped_module.weight", "layers.0.weight"),
        ("module", ""),
        ("", ""),
        ("modules.weight", "modules.weight"),
        ("my_module.weight", "my_module.weight"),
    ],
)
def test_names_are_those_of_the_model_without_its_wrappers(wrapped: str, plain: str) -> None:
    assert plain_name(wrapped) == plain


def test_the_outermost_model_is_the_root_and_strangers_are_none() -> None:
    model, stranger = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2)
    outer = Wrapper(model)
    modules = [stranger, *outer.modules()]
    assert find_roots(modules, model.parameters()) == [outer]
    assert [name for name, _ in named([outer], "parameters")] == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_of_two_that_hold_the_same_the_smaller_is_the_root() -> None:
    model = nn.Linear(2, 2)
    larger = nn.Sequential(nn.Sequential(nn.Sequential(model)))
    smaller = Wrapper(model)
    assert find_roots([*larger.modules(), *smaller.modules()], model.parameters()) == [smaller]


def test_two_models_are_told_apart_by_class_and_two_of_a_class_by_number() -> None:
    first, second, other = nn.Linear(1, 1), nn.Linear(1, 1), nn.Sequential(nn.Linear(1, 1))
    names = [name for name, _ in named([first, second, other], "parameters")]
    assert names == [
        "Linear.0.weight",
        "Linear.0.bias",
        "Linear.1.weight",
        "Linear.1.bias",
        "Sequential.0.weight",
        "Sequential.0.bias",
    ]


def test_parameters_in_no_module_have_no_root() -> None:
    assert find_roots([nn.Linear(1, 1)], [torch.zeros(1, requires_grad=True)]) == []


def test_living_models_and_optimizers_are_found_and_a_wrapped_optimizer_is_not_counted_twice() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())

    class Around(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner = inner  # as some libraries do: a subclass by name only

    around = Around(optimizer)
    living = find_live_objects()
    assert any(found is model for found in living.modules)
    assert any(found is optimizer for found in living.optimizers)
    assert not any(found is around for found in living.optimizers)
