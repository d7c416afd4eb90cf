"""Operations are watched one by one: what is not finite is followed to where it came from, and explained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from every_case import every_case
from torch import nn

from holdfast.injected.operations import Operations, Origin, is_bad
from holdfast.probe.meaning import Meaning, meaning_of

INF = float("inf")


def traced(compute: Callable[[torch.Tensor], torch.Tensor], given: list[float]) -> tuple[Origin | None, str]:
    """Compute, and go backward if the result is finite; the origin of what came out bad, and where it came out."""
    operations = Operations()
    leaf = torch.tensor(given, requires_grad=True)
    with operations:
        result = compute(leaf * 1.0)
        if is_bad(result):
            return operations.origin_of(result), "loss"
        result.sum().backward()
    assert leaf.grad is not None
    return (operations.origin_of(leaf.grad), "gradient") if is_bad(leaf.grad) else (None, "")


def explained(origin: Origin | None) -> Meaning:
    assert origin is not None
    meaning = meaning_of({"found": True, **origin.as_dict()})
    assert meaning is not None and meaning.text.endswith(".") and meaning.fixes
    return meaning


def masked(scores: torch.Tensor, hidden: list[bool]) -> torch.Tensor:
    return scores.masked_fill(torch.tensor(hidden), -INF).softmax(0)


@pytest.mark.filterwarnings("ignore:std")
@every_case(
    ("compute", "given", "operation", "cause"),
    [
        (lambda x: x.log(), [1.0, 0.0], "aten::log", "log-of-zero"),
        (lambda x: x.log(), [1.0, -2.0], "aten::log", "log-of-negative"),
        (lambda x: x / (x - 1), [1.0, 2.0], "aten::div", "division-by-zero"),
        (lambda x: 1 / (x - 1), [1.0, 2.0], "aten::reciprocal", "division-by-zero"),
        (lambda x: x / 0.0, [1.0, 2.0], "aten::div", "division-by-zero"),
        (lambda x: x.exp(), [1.0, 200.0], "aten::exp", "overflow"),
        (lambda x: x.sqrt(), [1.0, -1.0], "aten::sqrt", "root-of-negative"),
        (lambda x: x.rsqrt(), [1.0, 0.0], "aten::rsqrt", "division-by-zero"),
        (lambda x: x**-2, [1.0, 0.0], "aten::pow", "division-by-zero"),
        (lambda x: x**0.5, [1.0, -1.0], "aten::pow", "root-of-negative"),
        (lambda x: x.half() * 1000, [1.0, 200.0], "aten::mul", "overflow"),
        (lambda x: x * 1e30 * 1e30, [1.0, 2.0], "aten::mul", "overflow"),
        (lambda x: x.clone().div_(x - 1), [1.0, 2.0], "aten::div_", "division-by-zero"),
        (lambda x: x[x > 5].mean(), [1.0, 2.0], "aten::mean", "too-few-values"),
        (lambda x: x[:1].std(), [1.0, 2.0], "aten::std", "too-few-values"),
        (lambda x: masked(x, [True, True]), [1.0, 2.0], "aten::_softmax", "fully-masked-row"),
        (lambda x: x.acos(), [1.0, 2.0], "aten::acos", "out-of-domain"),
    ],
)
def test_a_bad_result_is_followed_to_its_operation(
    compute: Callable[[torch.Tensor], torch.Tensor], given: list[float], operation: str, cause: str
) -> None:
    origin, came_out = traced(lambda x: compute(x) * 2 + 1, given)
    assert origin is not None and came_out == "loss"
    assert (origin.kind, origin.operation, origin.stage) == ("operation", operation, "forward")
    assert explained(origin).cause == cause


@every_case(
    ("compute", "given", "node", "cause"),
    [
        (lambda x: (x**2).sqrt(), [1.0, 0.0], "SqrtBackward0", "division-by-zero"),
        (lambda x: torch.where(x > 0, x.log(), x), [1.0, 0.0], "LogBackward0", "log-of-zero"),
        (lambda x: torch.where(x > 0, 1 / x, x), [1.0, 0.0], "", ""),
        (lambda x: (x**2) ** 0.25, [1.0, 0.0], "PowBackward0", "division-by-zero"),
    ],
)
def test_a_gradient_is_followed_to_the_operation_whose_backward_it_is(
    compute: Callable[[torch.Tensor], torch.Tensor], given: list[float], node: str, cause: str
) -> None:
    origin, came_out = traced(compute, given)
    assert origin is not None and came_out == "gradient"
    if node:
        assert (origin.stage, origin.node) == ("backward", node)
        assert explained(origin).cause == cause
    assert origin.line is not None and origin.line.filename == __file__ and origin.line.name == "<lambda>"


@every_case(
    "compute",
    [
        lambda x: masked(x, [True, False]),
        lambda x: torch.where(x > 1.5, torch.full_like(x, -INF), x).amax(),
        lambda x: torch.full((2,), INF).minimum(x),
        lambda x: torch.empty(2).copy_(x.detach()) + x,
        lambda x: nn.functional.scaled_dot_product_attention(x.view(1, 2, 1), x.view(1, 2, 1), x.view(1, 2, 1), is_causal=True),
    ],
)
def test_infinities_that_were_meant_and_went_away_are_not_blamed(compute: Any) -> None:
    assert traced(compute, [1.0, 2.0]) == (None, "")


def test_what_was_bad_before_is_not_blamed_on_an_operation() -> None:
    operations = Operations()
    batch, weight = torch.tensor([1.0, float("nan")]), torch.tensor([2.0, 2.0])
    operations.taint(batch, Origin("input", detail="1 of 2 values is NaN, in sample 1"))
    with operations:
        result = (batch.view(2, 1) * weight).log().sum()
        unseen = torch.tensor([INF]) - 1
    assert operations.origin_of(result) is not None and operations.origin_of(result).kind == "input"  # type: ignore[union-attr]
    assert explained(operations.origin_of(result)).cause == "data-non-finite"
    assert operations.origin_of(unseen) is not None and operations.origin_of(unseen).kind == "unseen"  # type: ignore[union-attr]


def test_modules_are_named_by_their_place_in_the_outermost() -> None:
    operations = Operations()
    model = nn.Sequential(nn.Sequential(nn.ReLU()))
    assert operations.enter_module(model)
    assert not operations.enter_module(model[0])
    operations.enter_module(model[0][0])
    assert operations.modules == [("", "Sequential"), ("0", "Sequential"), ("0.0", "ReLU")]
    for _ in range(4):
        operations.leave_module()
    assert operations.modules == []


def test_the_samples_and_numbers_of_a_bad_operation_are_kept() -> None:
    origin, _ = traced(lambda x: x.view(3, 2).log(), [1.0, 2.0, 0.0, -3.0, 4.0, 5.0])
    assert origin is not None
    assert origin.output["bad_rows"] == [1] and (origin.output["nan"], origin.output["minus_inf"]) == (1, 1)
    assert origin.operands == [
        {
            "shape": [3, 2], "dtype": "float32", "min": -3.0, "max": 5.0, "zeros": 1, "negative": 1,
            "nan": 0, "inf": 0, "minus_inf": 0,
        }
    ]  # fmt: skip
    assert origin.at == {"index": [1, 0], "output": -INF, "operands": [0.0]}
