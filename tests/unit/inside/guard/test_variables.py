"""Data that became bad between the loader and the model: the loop's own variables say which, and where."""

from __future__ import annotations

from typing import Any

import torch
from every_case import every_case
from torch import nn

from holdfast.inside.guard.failure_context import variable_evidence

MODEL = nn.Linear(4, 3)


def step(inputs: Any, labels: torch.Tensor | None = None, *, half: bool = False) -> dict[str, Any]:
    """As a user writes it; the look is taken where `optimizer.step()` would be."""
    batch = inputs["x"] if isinstance(inputs, dict) else inputs
    logits = MODEL(batch)
    scores = logits.half() if half else logits  # noqa: F841 - it is only there
    return variable_evidence()


def test_a_variable_that_is_not_finite_is_named_with_its_place() -> None:
    bad = torch.ones(8, 4)
    bad[5, 2] = torch.nan
    said = step(bad)["input"]
    assert said.startswith("`inputs` in step(), line") and "test_variables.py" in said
    assert said.endswith("1 of 32 values is NaN, in sample 5")


def test_it_is_found_in_a_batch_of_several_fields() -> None:
    said = step({"x": torch.ones(8, 4), "mask": torch.full((8,), torch.inf)})["input"]
    assert said.startswith("`inputs['mask']`")


def test_outputs_and_weights_that_are_bad_are_no_input() -> None:
    weight = MODEL.weight.detach().clone()
    with torch.no_grad():
        MODEL.weight[0, 0] = torch.nan
    try:
        parameter, output = MODEL.weight, MODEL(torch.ones(8, 4))  # noqa: F841 - they are only there
        assert variable_evidence()["input"] == "finite"
    finally:
        with torch.no_grad():
            MODEL.weight.copy_(weight)


def test_a_mask_and_a_saved_state_are_no_bad_input() -> None:
    mask = torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)  # noqa: F841 - it is only there
    state = {"model": {"fc.weight": torch.full((2, 2), torch.nan)}}  # noqa: F841 - it is only there
    assert variable_evidence()["input"] == "finite"


def test_finite_data_is_said_to_be_finite_and_nothing_more() -> None:
    assert step(torch.randn(8, 4), torch.tensor([0, 1, 2, 0, 1, 2, -100, 0])) == {"input": "finite"}


def test_an_index_of_the_samples_is_not_taken_for_labels() -> None:
    """It has their shape and is beyond the classes; torch's losses refuse such a target before there is an update."""
    assert step(torch.randn(32, 4), torch.arange(100, 132)) == {"input": "finite"}


def test_values_that_half_precision_cannot_hold_are_told_where_it_is_used() -> None:
    assert step(1e6 * torch.ones(4, 4)) == {"input": "finite"}
    assert step(1e6 * torch.ones(4, 4), half=True) == {"input": "finite", "half": True, "input_max": 1e6}


def test_a_bad_update_of_the_guard_tells_the_variable(tmp_path: Any) -> None:
    import holdfast
    from holdfast.signals.run_folder import RunFolder

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.watch(model, optimizer, policy="guard", folder=tmp_path, name="run"):
        for number in range(5):
            scaled = torch.ones(8, 4) / (0.0 if number == 3 else 2.0)
            optimizer.zero_grad()
            model(scaled).sum().backward()
            optimizer.step()
    found = [row for row in RunFolder.open(tmp_path / "run").journal if row.get("kind") == "finding"]
    assert {row["code"] for row in found} >= {"non-finite-input"}
    assert "`scaled` in" in found[0]["evidence"]["input"] and "are Inf" in found[0]["evidence"]["input"]


@every_case("policy", ["observe", "guard"])
def test_a_norm_a_summed_loss_and_gradients_that_the_loop_keeps_are_no_input(tmp_path: Any, policy: str) -> None:
    import holdfast
    from holdfast.signals.run_folder import RunFolder

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total, spoiled = torch.zeros(()), []
    with holdfast.watch(model, optimizer, policy=policy, folder=tmp_path, name="run"):
        for number in range(5):
            inputs = torch.ones(8, 4)
            optimizer.zero_grad()
            loss = model(inputs).sum()
            loss.backward()
            if number == 3 and not spoiled:
                spoiled.append(number)
                model.weight.grad[0, 0] = torch.nan
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # noqa: F841 - as many loops do, to print it
            gradients = [one.grad for one in model.parameters()]  # noqa: F841 - it is only there
            total += loss.detach()
            optimizer.step()
    found = [row for row in RunFolder.open(tmp_path / "run").journal if row.get("kind") == "finding"]
    assert found[0]["code"] == "non-finite-gradient"
    assert found[0]["evidence"]["input"] == "finite"
    assert "non-finite-input" not in {row["code"] for row in found}


def test_of_several_batches_an_update_the_gradients_of_the_first_layer_tell_that_one_was_bad(tmp_path: Any) -> None:
    """The variables are those of the last batch; the loss of the first one is finite, as tanh(Inf) is 1."""
    import holdfast
    from holdfast.signals.run_folder import RunFolder

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.watch(model, optimizer, policy="observe", folder=tmp_path, name="run"):
        for number in range(12):
            inputs = torch.ones(8, 4)
            if number == 6:
                inputs[5, 2] = torch.inf
            (model(inputs).square().mean() / 2).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
    first = next(row for row in RunFolder.open(tmp_path / "run").journal if row.get("kind") == "finding")
    assert (first["code"], first["step"]) == ("non-finite-gradient", 3)
    said = "given to `0`: the gradient of its weight is not finite, that of its bias is"
    assert (first["evidence"]["parameter"], first["evidence"]["input"]) == ("0.weight", said)
