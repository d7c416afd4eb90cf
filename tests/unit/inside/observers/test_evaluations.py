"""What a script may do with the loss functions while its model is in evaluation, and what is heard of them."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import huber_loss
from watched_process import Watching, sgd, small, train

import holdfast
from holdfast.inside.observers.evaluations import EvaluationPhase

CROSS_ENTROPY, CODE = F.cross_entropy, F.cross_entropy.__code__


class Judged(nn.Module):
    """A model that holds its loss function as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.loss = F.cross_entropy

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs)  # type: ignore[no-any-return]


class LossInside(nn.Module):
    """A model whose forward pass ends in a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.layer(inputs), target)


def saved(thing: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def evaluated(model: nn.Module) -> nn.Module:
    train(model, sgd(model), 3)
    return model.eval()


@pytest.mark.parametrize("copied", [saved, lambda thing: pickle.loads(pickle.dumps(thing)), copy.deepcopy])
@pytest.mark.parametrize("held_since", ["before", "within"])
def test_a_model_that_holds_its_loss_function_is_saved_and_copied_in_evaluation(
    watching: Watching, copied: Callable[[Any], Any], held_since: str
) -> None:
    model = Judged()
    evaluated(model)
    if held_since == "within":
        model.loss = F.cross_entropy
    assert copied(model).loss is CROSS_ENTROPY
    assert copied([functools.partial(F.mse_loss, reduction="sum")])[0].func is F.mse_loss
    model.train()
    assert copied(model).loss is CROSS_ENTROPY


def test_a_model_with_a_loss_in_its_forward_pass_is_scripted_in_evaluation(watching: Watching) -> None:
    model, batch = LossInside(), (torch.randn(5, 4), torch.arange(5) % 3)
    optimizer = sgd(model)
    for _ in range(3):
        model(*batch).backward()
        optimizer.step()
    expected = model.eval()(*batch)
    assert float(torch.jit.script(model)(*batch)) == pytest.approx(float(expected))


def test_a_function_with_a_loss_is_scripted_and_traced_in_evaluation(
    watching: Watching, recwarn: pytest.WarningsRecorder
) -> None:
    def distance(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return F.smooth_l1_loss(one, other)

    evaluated(small())
    pair = torch.zeros(3), torch.ones(3)
    assert float(torch.jit.script(distance)(*pair)) == 0.5
    assert float(torch.jit.trace(distance, pair)(*pair)) == 0.5
    assert not [warning for warning in recwarn if warning.filename.startswith(str(Path(holdfast.__file__).parent))]


def test_a_loss_for_each_sample_is_mapped_in_evaluation(watching: Watching) -> None:
    evaluated(small())
    one, other = torch.zeros(3, 2), torch.ones(3, 2)
    with torch.no_grad():
        assert torch.func.vmap(lambda a, b: F.mse_loss(a, b))(one, other).tolist() == [1.0, 1.0, 1.0]


def test_a_loss_without_numbers_is_computed_in_evaluation(watching: Watching) -> None:
    evaluated(small())
    assert F.mse_loss(torch.zeros(3, device="meta"), torch.ones(3, device="meta")).is_meta
    with torch._subclasses.FakeTensorMode():
        F.mse_loss(torch.zeros(3), torch.ones(3))


def test_a_compiled_loss_is_computed_in_evaluation(watching: Watching) -> None:
    evaluated(small())
    distance = torch.compile(lambda a, b: F.mse_loss(a, b) + F.gaussian_nll_loss(a, b, b), backend="eager")
    with torch.no_grad():
        assert float(distance(torch.zeros(3), torch.ones(3))) == 1.5


def test_a_loss_function_looks_as_ever_in_evaluation(watching: Watching) -> None:
    before = inspect.signature(F.cross_entropy), inspect.getsource(F.cross_entropy), F.cross_entropy.__name__
    evaluated(small())
    assert F.cross_entropy is CROSS_ENTROPY
    assert (inspect.signature(F.cross_entropy), inspect.getsource(F.cross_entropy), F.cross_entropy.__name__) == before
    with pytest.raises(TypeError, match=r"cross_entropy\(\) got an unexpected keyword argument 'wrong'"):
        F.cross_entropy(torch.zeros(2, 2), torch.zeros(2), wrong=1)  # type: ignore[call-arg]


def test_after_evaluation_the_loss_functions_are_what_they_were(watching: Watching) -> None:
    before = {name: (f.__code__, f.__kwdefaults__, dict(vars(f))) for name, f in vars(F).items() if inspect.isfunction(f)}
    evaluated(small()).train()
    assert F.cross_entropy.__code__ is CODE
    assert {name: (f.__code__, f.__kwdefaults__, dict(vars(f))) for name, f in vars(F).items() if inspect.isfunction(f)} == before


def test_a_loss_function_is_heard_by_whatever_name_the_script_knows_it(watching: Watching) -> None:
    model = evaluated(small())
    with torch.no_grad():
        huber_loss(torch.zeros(3), torch.ones(3))
        F.gaussian_nll_loss(torch.zeros(3), torch.ones(3), torch.ones(3), full=True)
    model.train()
    assert {row["name"] for row in watching.close().table("evaluations").where()} == {"huber_loss", "gaussian_nll_loss"}


def test_a_loss_function_that_someone_else_has_replaced_is_left_alone(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = functools.partial(F.mse_loss)
    monkeypatch.setattr(F, "mse_loss", theirs)
    model = evaluated(small())
    assert F.mse_loss is theirs  # type: ignore[comparison-overlap]
    model.train()
    assert F.mse_loss is theirs  # type: ignore[comparison-overlap]


def test_a_mistake_in_listening_is_told_and_the_script_gets_its_loss(watching: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(EvaluationPhase, "_add_loss", broken)
    monkeypatch.setenv("HOLDFAST_DEBUG", "")
    told: list[str] = []
    phase = EvaluationPhase(0.0, lambda what, error: told.append(str(error)))
    phase.observe(object())
    try:
        assert float(F.mse_loss(torch.zeros(3), torch.ones(3))) == 1.0
    finally:
        phase.close()
    assert told == ["a mistake of ours"]
