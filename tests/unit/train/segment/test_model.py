"""The model: any encoder, one image, every scale."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "trainings"))
from loop_segment import SmallEncoder

from holdfast.train.segment.model import Experts, Segmenter, loss_of


def small(**more: bool) -> Segmenter:
    torch.manual_seed(0)
    return Segmenter(SmallEncoder(), experts=3, deep_supervision=more.get("deep_supervision", True))


def test_a_batch_of_one_image_gives_a_map_in_full_size() -> None:
    model = small().train()
    logits = model(torch.rand(1, 3, 64, 96))
    assert [tuple(one.shape[-2:]) for one in logits] == [(64, 96), (32, 48), (16, 24), (8, 12), (4, 6)]
    loss_of(logits, torch.ones(1, 64, 96)).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_without_deep_supervision_only_the_full_size_is_predicted_and_every_trained_parameter_has_a_gradient() -> None:
    model = small(deep_supervision=False).train()
    model.train_only(99)
    logits = model(torch.rand(1, 3, 64, 64))
    assert len(logits) == 1
    loss_of(logits, torch.ones(1, 64, 64)).backward()
    assert all((parameter.grad is not None) == parameter.requires_grad for parameter in model.parameters())
    assert small(deep_supervision=False).state_dict().keys() == small().state_dict().keys(), "a run may switch it on later"


def test_deep_supervision_adds_to_the_loss() -> None:
    logits, mask = small().train()(torch.rand(2, 3, 64, 64)), torch.zeros(2, 64, 64)
    mask[:, 20:40, 20:40] = 1
    assert loss_of(logits, mask).item() / loss_of(logits[:1], mask).item() == pytest.approx(1.7, abs=0.15)


def test_the_gate_decides_which_expert_counts() -> None:
    mixture, features = Experts(16, 3).eval(), torch.rand(1, 16, 8, 8)
    with torch.no_grad():
        mixture.gate.weight.zero_()
        mixture.gate.bias.copy_(torch.tensor([50.0, 0.0, 0.0]))
        only_first = mixture(features)
        mixture.experts[1].weight.mul_(9)
        assert torch.equal(mixture(features), only_first)
        mixture.experts[0].weight.mul_(-1)
        assert not torch.equal(mixture(features), only_first)


def test_the_loss_is_small_for_the_truth_and_ranks_predictions() -> None:
    mask = torch.zeros(1, 32, 32)
    mask[:, 8:24, 8:24] = 1
    truth = (mask[:, None] * 2 - 1) * 20
    assert loss_of([truth], mask).item() < 0.01
    shifted = truth.roll(4, dims=-1)
    assert 0.01 < loss_of([shifted], mask).item() < loss_of([-truth], mask).item()
