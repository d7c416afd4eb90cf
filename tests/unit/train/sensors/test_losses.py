"""Losses are in each target's own units, however a batch is divided; a beta that does not fit is reported."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from holdfast.train.sensors.array import SensorArray, Target
from holdfast.train.sensors.evaluate import Errors, Evaluator
from holdfast.train.sensors.losses import beta_words, target_losses

ENERGY = Target("energy", ("energy",), "smooth_l1", 0.02, 1.0, offset=5.0, scale=2.0, size=1)
PLACE = Target("place", ("x", "y"), "l1", None, 3.0, offset=0.0, scale=0.5, size=2)


def test_beta_is_in_the_units_of_the_target() -> None:
    predicted, truth = torch.tensor([[0.3], [0.1], [0.005]]), torch.tensor([[5.0], [5.0], [5.0]])
    (loss,) = target_losses({"energy": predicted}, truth, [ENERGY])
    own = F.smooth_l1_loss(predicted * 2 + 5, truth, reduction="none", beta=0.02)[:, 0]
    assert torch.allclose(loss, own / 2, atol=1e-6)


def test_a_truth_that_is_missing_does_not_count() -> None:
    outputs = {"energy": torch.zeros(3, 1), "place": torch.zeros(3, 2)}
    truth = torch.tensor([[math.nan, 0.5, 0.5], [7.0, math.inf, 1.0], [5.0, 0.0, 0.0]], requires_grad=True)
    energy, place = target_losses(outputs, truth, [ENERGY, PLACE])
    assert energy[0] == 0 and place.tolist() == [1.0, 1.0, 0.0] and energy.isfinite().all()


@pytest.mark.parametrize(
    ("beta", "typical", "final", "expected"),
    [
        (1.0, 0.005, False, "nearly always quadratic; set loss_beta: 0.005, or loss_fn: l1"),
        (100.0, 9.55, False, "nearly always quadratic; set loss_beta: 10, or loss_fn: l1"),
        (0.01, 0.5, False, None),  # errors are large at first
        (0.01, 0.5, True, "nearly always linear; set loss_beta: 0.5"),
        (0.02, 0.01, True, None),
        (1.0, 0.0, True, None),
    ],
)
def test_a_beta_far_from_the_errors_is_reported_with_a_better_one(
    beta: float, typical: float, final: bool, expected: str | None
) -> None:
    words = beta_words(Target("energy", (), "smooth_l1", beta), typical, is_final=final)
    assert words is None if expected is None else words is not None and expected in words
    assert beta_words(Target("energy", (), "l1", beta), typical, is_final=final) is None


def test_quantiles_of_errors_are_kept_without_the_errors() -> None:
    random, errors = np.random.default_rng(0), Errors()
    values = random.normal(0.5, 2, 20_000).astype(np.float32)
    for part in np.array_split(values, 7):
        errors.add(part)
    assert errors.quantile(0.5) == pytest.approx(np.median(np.abs(values)), rel=0.03)
    assert errors.quantile(0.9) == pytest.approx(np.quantile(np.abs(values), 0.9), rel=0.03)
    assert (errors.bias, errors.rmse) == pytest.approx((values.mean(), np.sqrt(np.square(values).mean())), rel=1e-4)


def test_two_ranks_evaluate_what_one_does() -> None:
    random = torch.Generator().manual_seed(0)
    array = SensorArray((), (), 3)
    whole, parts = Evaluator(array, [ENERGY, PLACE]), [Evaluator(array, [ENERGY, PLACE]) for _ in range(2)]
    for number in range(6):
        batch = {"values": torch.zeros(8, 1, 3), "targets": torch.rand(8, 3, generator=random) + 4}
        batch["index"] = torch.arange(8) + 8 * number
        outputs = {"energy": torch.rand(8, 1, generator=random), "place": torch.rand(8, 2, generator=random)}
        for one in (whole, parts[number % 2]):
            one.add_targets(batch, outputs)
    merged = Evaluator.merged(parts)
    assert merged.metrics() == pytest.approx(whole.metrics())
    assert [one.number for one in merged.worst_events()] == [one.number for one in whole.worst_events()]
    assert len(whole.worst) == 6 and whole.worst_events()[0].loss == max(one.loss for one in whole.worst_events())
