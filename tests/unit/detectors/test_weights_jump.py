"""Weights that something else than the optimizer wrote into: seen in their norm together with the loss, and never without."""

from __future__ import annotations

from typing import Any

import numpy as np
from every_case import every_case

from holdfast.detectors.weights_jump import weights_jump
from holdfast.signals.schema import MISSING
from holdfast.signals.view import Evaluation, SignalView

STEPS = np.arange(240)
NOISE = np.random.default_rng(0).normal(0, 0.03, 240)


def view(
    *, loss: np.ndarray, norm: np.ndarray, ratio: float = 2e-3, lr: Any = 1e-3, every: int = 20, gradients: Any = MISSING
) -> SignalView:
    sampled = np.where(STEPS % every == 1, norm, MISSING)
    ratios = np.where(STEPS % every == 2, ratio, MISSING)
    columns = {"step": STEPS, "loss": loss, "weight_norm": sampled, "update_ratio": ratios, "lr": np.full(240, lr)}
    columns["grad_norm"] = np.full(240, gradients)
    return SignalView({name: np.asarray(values) for name, values in columns.items()})


FALLING = 2.5 + 1.6 * np.exp(-STEPS / 30) + NOISE
CORRUPTED = np.where(STEPS < 150, FALLING, 3.9 - 0.003 * (STEPS - 150) + NOISE)
GROWING = 10.0 + 0.02 * STEPS


@every_case("times", [0.3, 0.01, 5.0, np.inf])
def test_weights_that_jump_while_the_loss_is_lost_are_told(times: float) -> None:
    found = weights_jump(view(loss=CORRUPTED, norm=np.where(STEPS < 150, GROWING, times * GROWING)))
    assert found is not None and (found.code, found.severity) == ("loss-divergence", "critical")
    assert 150 <= found.onset <= 152


def test_weights_a_hundredth_as_large_are_told_though_most_of_the_loss_is_learned_again_at_once() -> None:
    loss = np.where(STEPS < 151, FALLING, FALLING + 1.4 * np.exp(-(STEPS - 151) / 4) + 0.4)
    assert weights_jump(view(loss=loss, norm=np.where(STEPS < 150, GROWING, 0.01 * GROWING))) is not None
    assert weights_jump(view(loss=loss, norm=np.where(STEPS < 150, GROWING, 0.6 * GROWING))) is None, "updates may do that"


def test_weights_that_normalisation_layers_outweigh_are_told_where_no_update_goes_as_far() -> None:
    loss = np.where(STEPS < 151, FALLING, FALLING + 1.4 * np.exp(-(STEPS - 151) / 4) + 0.4)
    norm = np.where(STEPS < 150, GROWING, 0.6 * GROWING)
    found = weights_jump(view(loss=loss, norm=norm, ratio=5e-4))
    assert found is not None and found.evidence["weight_norm"] < 0.62 * found.evidence["weight_norm_before"]
    assert weights_jump(view(loss=FALLING, norm=norm, ratio=5e-4)) is None, "nothing was lost"


def test_weights_that_jumped_are_told_while_the_loss_falls_so_fast_again_that_it_looks_like_noise() -> None:
    learned = 0.008 + 2.0 * np.exp(-STEPS / 15) + 0.1 * np.abs(NOISE)
    loss = np.where(STEPS < 160, learned, 1.3 * np.exp(-np.maximum(STEPS - 160, 0) / 4) + 0.1 * np.abs(NOISE))[:176]
    jumped = view(loss=np.pad(loss, (0, 64)), norm=np.where(STEPS < 160, GROWING, 8 * GROWING))
    until = SignalView({name: jumped.column(name)[:176] for name in ("step", "loss", "weight_norm", "update_ratio", "lr")})
    assert weights_jump(until) is not None


def test_weights_a_hundredth_as_large_are_told_though_the_loss_is_so_noisy_that_single_values_say_nothing() -> None:
    noisy = 0.12 + NOISE + 0.045 * np.exp(-STEPS / 60)
    lost = np.where(STEPS < 150, noisy, 0.19 + NOISE)
    assert weights_jump(view(loss=lost, norm=np.where(STEPS < 150, GROWING, 0.01 * GROWING))) is not None
    assert weights_jump(view(loss=noisy, norm=np.where(STEPS < 150, GROWING, 0.01 * GROWING))) is None, "nothing was lost"


def test_a_small_move_of_the_norm_is_enough_where_the_loss_rises_at_once_without_a_large_gradient() -> None:
    norm, sudden = np.where(STEPS < 150, GROWING, 0.86 * GROWING), {"ratio": 5e-4, "gradients": 1 + NOISE}
    found = weights_jump(view(loss=CORRUPTED, norm=norm, **sudden))
    assert found is not None and found.onset == 150
    large = np.where(STEPS == 149, 50.0, sudden["gradients"])
    assert weights_jump(view(loss=CORRUPTED, norm=norm, ratio=5e-4, gradients=large)) is None, "one update can do that"
    slow = np.where(STEPS < 150, FALLING, np.minimum(FALLING + 0.1 * (STEPS - 149), 3.9))
    assert weights_jump(view(loss=slow, norm=norm, **sudden)) is None, "it diverges step by step"


def test_weights_that_grow_again_quickly_were_overwritten_all_the_same() -> None:
    norm = np.where(STEPS < 150, GROWING, np.minimum(0.01 * GROWING * 1.03 ** (STEPS - 150), GROWING))
    assert weights_jump(view(loss=CORRUPTED, norm=norm)) is not None


@every_case(
    ("loss", "norm", "ratio"),
    [
        (CORRUPTED, GROWING, 2e-3),
        (FALLING, np.where(STEPS < 150, GROWING, 0.3 * GROWING), 2e-3),
        (CORRUPTED, np.where(STEPS < 150, GROWING, 1.2 * GROWING), 2e-3),
        (CORRUPTED, np.where(STEPS < 150, GROWING, 2.0 * GROWING), 5e-2),
        (np.where((STEPS >= 150) & (STEPS < 155), 4.0, FALLING), np.where(STEPS < 150, GROWING, 0.3 * GROWING), 2e-3),
    ],
    ids=["the loss alone", "the weights alone", "a small move", "updates that large", "a spike that recovers"],
)
def test_anything_less_is_left_alone(loss: np.ndarray, norm: np.ndarray, ratio: float) -> None:
    assert weights_jump(view(loss=loss, norm=norm, ratio=ratio)) is None


@every_case(("last", "norm", "seen"), [(np.nan, np.inf, True), (0.4, np.inf, False), (np.nan, 1.01, False)])
def test_a_weight_that_normalisation_hides_is_told_by_the_held_out_loss(last: float, norm: float, seen: bool) -> None:
    losses = [Evaluation(step, "val", "loss", value) for step, value in ((60, 2.0), (120, 0.5), (180, last))]
    columns = {"step": STEPS, "loss": FALLING, "weight_norm": np.where(STEPS % 20 == 1, GROWING, MISSING)}
    columns["weight_norm"][181:] *= norm
    found = weights_jump(SignalView({name: values[:190] for name, values in columns.items()}, evaluations=losses))
    assert (found is not None) is seen
    assert found is None or (found.code, found.onset, found.evidence["weight_norm"]) == ("non-finite-weights", 162, np.inf)


def test_a_weight_beyond_all_numbers_that_only_some_batches_meet_is_told() -> None:
    overwritten = np.where(STEPS < 150, GROWING, np.inf)
    met = np.where((STEPS >= 150) & (STEPS % 3 == 0), np.where(STEPS % 2 == 0, np.inf, 1e36), FALLING)
    found = weights_jump(view(loss=met, norm=overwritten))
    assert found is not None and (found.code, found.onset) == ("non-finite-weights", 150)
    assert weights_jump(view(loss=FALLING, norm=overwritten)) is None, "nothing looks at it"
    a_unit_less = np.where(STEPS < 150, FALLING, FALLING[100:150].mean() + 0.05 + NOISE)
    found = weights_jump(view(loss=a_unit_less, norm=overwritten))
    assert found is not None and (found.code, found.onset) == ("non-finite-weights", 142), "behind the last finite sample"


def test_a_rate_that_jumped_is_another_story() -> None:
    rate = np.where(STEPS < 150, 1e-3, 1e-1)
    assert weights_jump(view(loss=CORRUPTED, norm=np.where(STEPS < 150, GROWING, 3 * GROWING), lr=rate)) is None


def test_a_run_that_still_learns_quickly_is_not_too_noisy_for_it() -> None:
    quick = 0.3 + 2.0 * np.exp(-STEPS / 25) + NOISE
    loss = np.where(STEPS < 71, quick, 2.3 + NOISE)[:110]
    norm = np.where(STEPS < 71, 22.0, 14.0)
    columns = {
        "step": STEPS[:110],
        "loss": loss,
        "weight_norm": np.where(np.isin(STEPS, (1, 11, 21, 72)), norm, MISSING)[:110],
        "update_ratio": np.where(np.isin(STEPS, (2, 12, 22, 72)), 5e-3, MISSING)[:110],
        "lr": np.full(110, 1e-3),
    }
    found = weights_jump(SignalView(columns))
    assert found is not None and 71 <= found.onset <= 72
