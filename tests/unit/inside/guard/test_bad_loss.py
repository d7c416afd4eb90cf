"""A loss that is not finite: the finding names what it was computed from, in a script that nobody changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from every_case import every_case
from torch import nn
from torch.utils.checkpoint import checkpoint

import holdfast
from holdfast.inside.guard.failure_context import bad_loss_evidence
from holdfast.signals.run_folder import RunFolder

LABELS = torch.tensor([0, 1, 2, 0])


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def outputs(inputs: torch.Tensor | None = None) -> torch.Tensor:
    return model()(torch.randn(4, 4) if inputs is None else inputs)


def bad_inputs() -> torch.Tensor:
    inputs = torch.randn(4, 4)
    inputs[2, 1] = torch.nan
    return inputs


def masked() -> torch.Tensor:
    """Attention with a mask of minus infinity, and then a logarithm of zero."""
    mask = torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)
    return torch.log((F.scaled_dot_product_attention(*[outputs()[None, None]] * 3, attn_mask=mask)).relu() * 0)


def attention_that_overflows() -> torch.Tensor:
    """The log-sum-exp that it keeps for its backward pass is NaN; it is not an input."""
    query, key, value = (torch.randn(2, 2, 8, 4).requires_grad_() * size for size in (1e25, 1e25, 1.0))
    return F.scaled_dot_product_attention(query, key, value).mean()


LOSSES: dict[str, tuple[Any, dict[str, str]]] = {
    "an input that only a helper function saw": (
        lambda: F.cross_entropy(outputs(bad_inputs()), LABELS),
        {"input": "given to `Addmm`: 1 of 16 values is NaN, in sample 2"},
    ),
    "a target": (
        lambda: F.mse_loss(outputs(), torch.full((4, 3), torch.inf)),
        {"input": "given to `MseLoss`: 12 of 12 values are Inf, in samples 0, 1, 2, 3"},
    ),
    "a logarithm": (
        lambda: -torch.log(F.softmax(outputs() * 1e5, 1)).mean(),
        {"input": "finite", "operation": "Log", "operation_why": "log-of-zero"},
    ),
    "a division": (
        lambda: outputs().sum() / (outputs() * 0).sum(),
        {"input": "finite", "operation": "Div", "operation_why": "division-by-zero"},
    ),
    "another operation": (lambda: (outputs() * 100).exp().exp().sum(), {"input": "finite", "operation": "Exp"}),
    "half precision": (
        lambda: ((outputs().half() * 3000) @ (outputs().half() * 3000).T).relu().float().sum(),
        {"input": "finite", "operation": "Mm", "operation_why": "overflow"},
    ),
    "a mask before it": (lambda: masked().mean(), {"input": "finite", "operation": "Log", "operation_why": "log-of-zero"}),
    "attention whose products overflow": (
        attention_that_overflows,
        {"operation": "ScaledDotProductFlashAttentionForCpu"},
    ),
    "layers that are computed again": (
        lambda: F.cross_entropy(checkpoint(model(), bad_inputs(), use_reentrant=False), LABELS),
        {"input": "given to `Addmm`: 1 of 16 values is NaN, in sample 2"},
    ),
    "tokens": (
        lambda: torch.log(F.embedding(LABELS, torch.zeros(3, 2, requires_grad=True))).sum(),
        {"input": "finite", "operation": "Log", "operation_why": "log-of-zero"},
    ),
}


@every_case("name", list(LOSSES))
def test_the_data_or_the_operation_where_it_began_is_named(name: str) -> None:
    make, expected = LOSSES[name]
    loss = make()
    assert not bool(torch.isfinite(loss))
    assert bad_loss_evidence(loss) == expected
    loss.backward()  # nothing was taken from the graph


def test_of_several_batches_in_a_step_the_bad_one_is_named_and_the_next_training_step_begins_anew(tmp_path: Path) -> None:
    """With gradient accumulation the last batch is in the script's variables at the update, and it is finite."""
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    def loss_of(number: int) -> torch.Tensor:
        return F.cross_entropy(network(bad_inputs() if number == 6 else torch.randn(4, 4)), LABELS)

    with holdfast.watch(network, optimizer, folder=tmp_path, name="run"):
        for number in range(0, 12, 3):
            optimizer.zero_grad()
            for part in range(3):
                loss_of(number + part).backward()
            optimizer.step()
    found = [row for row in RunFolder.open(tmp_path / "run").journal if row.get("kind") == "finding"]
    assert [(row["code"], row["step"]) for row in found[:2]] == [("non-finite-loss", 2), ("non-finite-input", 2)]
    assert found[0]["evidence"]["input"] == "given to `Addmm`: 1 of 16 values is NaN, in sample 2"
