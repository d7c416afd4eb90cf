"""Corners of torch that a training may touch while everything is sampled: odd numbers, and losses of several kinds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from watched_process import Watching, sgd, small, step_and_undo, train

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
