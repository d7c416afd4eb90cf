"""Corners of torch that a training may touch while everything is sampled, in the process of the tests."""

from __future__ import annotations

import copy
import gc
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from watched_training import Recorded

from holdfast.inside.arm import arm_from_environment, armed
from holdfast.signals.run_folder import RunFolder


class Watching:
    """The whole process is watched; reading ends it."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        arm_from_environment()

    def close(self) -> Recorded:
        armed().close_all()
        return Recorded(self._run)


@pytest.fixture
def watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watching]:
    """Everything is sampled at every step."""
    yield from watched(tmp_path, monkeypatch, full=True)


@pytest.fixture
def seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watching]:
    """Sampled as by default: some steps in the beginning, then every ten or so."""
    yield from watched(tmp_path, monkeypatch, full=False)


def watched(folder: Path, monkeypatch: pytest.MonkeyPatch, *, full: bool) -> Iterator[Watching]:
    run = RunFolder.create(folder, "run")
    monkeypatch.setenv("HOLDFAST_RUN", str(run.path))
    monkeypatch.setenv("HOLDFAST_SAMPLING", "full" if full else "")
    monkeypatch.setenv("HOLDFAST_DEBUG", "raise")
    monkeypatch.delenv("HOLDFAST_SUPERVISOR", raising=False)
    torch.manual_seed(0)
    gc.collect()  # models and optimizers of other tests
    watching = Watching(run)
    yield watching
    assert watching.close().findings == []


def small(**kind: Any) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8, **kind), nn.Tanh(), nn.Linear(8, 1, **kind))


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int = 6,
    *,
    loss_of: Callable[[torch.Tensor], torch.Tensor] = lambda outputs: outputs.square().mean(),
    after_each: Callable[[], object] = lambda: None,
    dtype: torch.dtype = torch.float32,
) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model(torch.randn(5, 4, dtype=dtype)))
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        after_each()
    return losses


def sgd(model: nn.Module, **how: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), **{"lr": 1e-2, **how})


# Numbers


def test_gradients_whose_squares_overflow_are_finite(watching: Watching) -> None:
    model = small()
    truth = []

    def loss_of(outputs: torch.Tensor) -> torch.Tensor:
        return outputs.sum() * 1e25

    optimizer = sgd(model, lr=1e-30)
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(model(torch.ones(5, 4))).backward()
        truth.append(math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters())))
        optimizer.step()
    steps = watching.close().steps
    assert steps["grad_norm"] == pytest.approx(truth, rel=1e-4)
    assert steps["non_finite"] == [0] * 5


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_precisions_are_read(watching: Watching, dtype: torch.dtype) -> None:
    model = small(dtype=dtype)
    losses = train(model, sgd(model), dtype=dtype)
    steps = watching.close().steps
    assert steps["loss"] == pytest.approx(losses)
    assert all(0 < norm < 100 for norm in steps["grad_norm"])


def test_gradients_of_zero_have_norm_zero_and_no_gradients_at_all_are_no_error(watching: Watching) -> None:
    model = small()
    optimizer = sgd(model)
    train(model, optimizer, 4, loss_of=lambda outputs: outputs.sum() * 0)
    optimizer.zero_grad()
    optimizer.step()
    assert watching.close().steps["grad_norm"] == [0.0] * 4 + [None]


def test_large_and_small_tensors_together(watching: Watching) -> None:
    model = nn.Sequential(nn.Linear(4, 9000), nn.Linear(9000, 1))
    truth = []
    optimizer = sgd(model, lr=1e-6)

    def keep_norm(*_: object) -> None:
        truth.append(math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters())))

    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        keep_norm()
        optimizer.step()
    assert watching.close().steps["grad_norm"] == pytest.approx(truth, rel=1e-4)


def step_and_undo(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    before = copy.deepcopy(model.state_dict())
    optimizer.step()
    model.load_state_dict(before)


class Experts(nn.Module):
    """Two parts that take turns: always the same number of gradients, never the same ones."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 1, bias=False) for _ in range(2))
        self.turn = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.turn += 1
        return self.experts[self.turn % 2](inputs)


def test_of_parts_that_take_turns_the_bad_one_is_named_on_any_step(seldom: Watching) -> None:
    model = Experts()
    optimizer = sgd(model)
    for number in range(24):
        optimizer.zero_grad()
        inputs = torch.full((5, 4), math.nan) if number in (14, 17) else torch.ones(5, 4)
        model(inputs).square().mean().backward()
        step_and_undo(model, optimizer)
    recorded = seldom.close()
    assert [n for n, bad in enumerate(recorded.steps["non_finite"]) if bad] == [14, 17]
    table = recorded.table("parameters")
    assert [row["name"] for row in table.where(step=14)] == ["experts.1.weight"]
    assert [row["name"] for row in table.where(step=17)] == ["experts.0.weight"]


def test_a_bad_gradient_is_the_only_row_of_a_step_that_is_not_sampled(seldom: Watching) -> None:
    model = small()
    optimizer = sgd(model)
    for number in range(10):
        optimizer.zero_grad()
        model(torch.ones(5, 4)).square().mean().backward()
        if number == 7:
            model[2].weight.grad[0, 3] = math.inf
        step_and_undo(model, optimizer)
    recorded = seldom.close()
    assert recorded.steps["non_finite"] == [0] * 7 + [1] + [0] * 2
    (row,) = recorded.table("parameters").where(step=7)
    assert (row["name"], row["non_finite"], row["grad_max"]) == ("2.weight", 1, math.inf)


# Losses


def test_backward_on_several_losses_at_once_adds_them(watching: Watching) -> None:
    model = small()
    optimizer, expected = sgd(model), []
    for _ in range(4):
        optimizer.zero_grad()
        outputs = model(torch.randn(5, 4))
        parts = [outputs.square().mean(), outputs.abs().mean()]
        torch.autograd.backward(tensors=parts)
        expected.append(sum(part.item() for part in parts))
        optimizer.step()
    assert watching.close().steps["loss"] == pytest.approx(expected)


def test_backward_on_an_edge_of_the_graph_is_no_error(watching: Watching) -> None:
    model = small()
    optimizer = sgd(model)
    for _ in range(4):
        optimizer.zero_grad()
        edge = torch.autograd.graph.get_gradient_edge(model(torch.randn(5, 4)).square().mean())
        torch.autograd.backward(edge)
        optimizer.step()
    steps = watching.close().steps
    assert steps["loss"] == [None] * 4
    assert steps["backwards"] == [1] * 4


def test_two_scaled_losses_of_one_step_are_both_unscaled(watching: Watching) -> None:
    model = small()
    optimizer, expected = sgd(model), []
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    for _ in range(4):
        optimizer.zero_grad()
        outputs = model(torch.randn(5, 4))
        first, second = outputs.square().mean(), outputs.abs().mean()
        scaled_first, scaled_second = scaler.scale(first), scaler.scale(second)
        scaled_first.backward(retain_graph=True)
        (scaled_second / 2).backward()
        expected.append(first.item() + second.item() / 2)
        scaler.step(optimizer)
        scaler.update()
    assert watching.close().steps["loss"] == pytest.approx(expected)


def test_gradients_by_autograd_grad_are_read_without_a_loss(watching: Watching) -> None:
    model = small()
    optimizer = sgd(model)
    for _ in range(4):
        gradients = torch.autograd.grad(model(torch.randn(5, 4)).square().mean(), list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
    steps = watching.close().steps
    assert len(steps) == 4
    assert all(norm > 0 for norm in steps["grad_norm"])


def test_a_penalty_on_gradients_with_a_second_backward_inside(watching: Watching) -> None:
    model = small()
    optimizer = sgd(model)
    for _ in range(4):
        optimizer.zero_grad()
        inputs = torch.randn(5, 4, requires_grad=True)
        outputs = model(inputs)
        (slope,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
        (outputs.square().mean() + slope.square().mean()).backward()
        optimizer.step()
    assert watching.close().steps["backwards"] == [1] * 4


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
