"""Corners of torch that a training may touch while everything is sampled: odd optimizers, and what is done with a model."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from watched_process import Watching, sgd, small, train

# Optimizers


class Sharpness(torch.optim.Optimizer):
    """An optimizer that drives another and calls the closure in between, as sharpness-aware minimisation does."""

    def __init__(self, parameters: Any, inner: torch.optim.Optimizer) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.inner = inner

    def step(self, closure: Callable[[], torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
        with torch.enable_grad():
            loss = closure()
            closure()
        self.inner.step()
        return loss


def test_an_optimizer_that_drives_another_makes_one_step(watching: Watching) -> None:
    model = small()
    outer = Sharpness(model.parameters(), sgd(model))
    losses = []

    def closure() -> torch.Tensor:
        outer.zero_grad()
        loss = model(torch.ones(5, 4)).square().mean()
        loss.backward()
        losses.append(loss.item())
        return loss

    for _ in range(5):
        outer.step(closure)
    recorded = watching.close()
    assert recorded.names == ["rank-0"]
    assert recorded.steps["loss"] == pytest.approx(losses[::2])


class Bare(torch.optim.Optimizer):
    """An optimizer of one's own, without a learning rate."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=0.01)


def test_an_optimizer_of_ones_own_without_learning_rate(watching: Watching) -> None:
    model = small()
    losses = train(model, Bare(model.parameters()))
    recorded = watching.close()
    assert recorded.steps["loss"] == losses
    assert recorded.steps["lr"] == [None] * 6
    assert len(recorded.table("groups")) == 1


def test_a_whole_number_as_learning_rate(watching: Watching) -> None:
    model = small()
    train(model, sgd(model, lr=1))
    assert watching.close().steps["lr"] == [1.0] * 6


def test_a_group_of_parameters_that_is_added_later_is_read_too(watching: Watching) -> None:
    model, more = small(), nn.Linear(1, 1)
    optimizer = sgd(model)
    train(model, optimizer, 3)
    optimizer.add_param_group({"params": more.parameters(), "lr": 0.5})
    train(nn.Sequential(model, more), optimizer, 3)
    recorded = watching.close()
    assert len(recorded.steps) == 6
    assert {(row["step"], row["group"], row["lr"]) for row in recorded.table("groups").where()} == {(0, 0, 1e-2), (3, 1, 0.5)}


def test_two_steps_on_the_same_gradients_are_two_rows(watching: Watching) -> None:
    model = small()
    optimizer = sgd(model)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
        optimizer.step()
    assert len(watching.close().steps) == 6


def test_a_training_in_a_thread(watching: Watching) -> None:
    model = small()
    optimizer = sgd(model)
    losses: list[float] = []
    thread = threading.Thread(target=lambda: losses.extend(train(model, optimizer)))
    thread.start()
    thread.join()
    assert watching.close().steps["loss"] == losses


# What else is done with a model between two steps
EXPORTS: dict[str, Callable[[nn.Module, torch.Tensor], object]] = {
    "script": lambda model, _inputs: torch.jit.script(model),
    "trace": lambda model, inputs: torch.jit.trace(model, inputs),
    "symbolic": lambda model, _inputs: torch.fx.symbolic_trace(model),
    "export": lambda model, inputs: torch.export.export(model, (inputs,)),
}


@pytest.mark.parametrize("how", EXPORTS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_can_be_exported_at_any_step(watching: Watching, how: str) -> None:
    model = small()
    train(model, sgd(model), 5, after_each=lambda: EXPORTS[how](model, torch.randn(5, 4)))
    assert len(watching.close().steps) == 5


def test_functional_calls_and_gradients_for_each_sample(watching: Watching) -> None:
    model = small()
    optimizer = sgd(model)

    def loss_of(parameters: dict[str, torch.Tensor], sample: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, parameters, (sample.unsqueeze(0),)).square().sum()

    for _ in range(5):
        parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
        each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0))(parameters, torch.randn(5, 4))
        for name, parameter in model.named_parameters():
            parameter.grad = each[name].mean(0)
        optimizer.step()
    assert len(watching.close().steps) == 5


def test_a_module_that_is_called_several_times_and_inside_itself(watching: Watching) -> None:
    class Recursive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, inputs: torch.Tensor, depth: int = 2) -> torch.Tensor:
            outputs = torch.tanh(self.layer(inputs))
            return self(outputs, depth - 1) if depth else outputs

    model = Recursive()
    train(model, sgd(model), 5)
    rows = watching.close().table("modules").where(step=4)
    assert [row["module"] for row in rows if row["stage"] == "forward"].count("layer") == 3
    assert [row["module"] for row in rows if row["stage"] == "forward"].count("(model)") == 3


def test_a_part_of_the_model_that_is_replaced_under_way(watching: Watching) -> None:
    model = small()
    train(model, sgd(model), 4)
    model[2] = nn.Linear(8, 1)
    losses = train(model, sgd(model), 4)
    recorded = watching.close()
    assert recorded.names == ["rank-0"]
    assert recorded.steps["loss"][4:] == losses


def test_a_copy_of_the_model_leaves_no_passes_behind(watching: Watching) -> None:
    model = small()
    copies: list[nn.Module] = []

    def use_a_copy() -> None:
        copies.append(copy.deepcopy(model))
        copies[-1](torch.randn(2, 4)).sum().backward()

    train(model, sgd(model), 5, after_each=use_a_copy)
    rows = watching.close().table("modules").where(step=4)
    assert [row["module"] for row in rows if row["stage"] == "forward"].count("0") == 1


def test_losses_of_several_kinds_in_one_evaluation_are_told_apart(watching: Watching) -> None:
    model = small()
    train(model, sgd(model), 3)
    model.eval()
    model.eval()
    with torch.no_grad():
        outputs = model(torch.ones(3, 4))
        F.mse_loss(outputs, torch.zeros(3, 1))
        F.l1_loss(outputs, torch.zeros(3, 1))
        nn.MSELoss(reduction="none")(outputs, torch.zeros(3, 1))
    model.train()
    model.train()
    rows = watching.close().table("evaluations").where()
    assert {row["name"]: row["value"] for row in rows} == pytest.approx(
        {"mse_loss": float(outputs.square().mean()), "l1_loss": float(outputs.abs().mean())}
    )


def test_parameters_that_torch_swaps_in_a_conversion_are_let_go_and_trained_on(
    watching: Watching,
) -> None:
    model = small()
    optimizer = sgd(model)
    train(model, optimizer, 3)
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.double().float()  # as sharded models are brought to the host and back
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
    train(model, optimizer, 3)
    recorded = watching.close()
    assert recorded.names == ["rank-0"] and len(recorded.steps["loss"]) == 6
