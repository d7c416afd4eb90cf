"""A learning rate that jumps: a small rise of a noisy loss is reported, for its place is known; one that helps is not."""

from __future__ import annotations

import numpy as np
from every_case import every_case

from holdfast.detectors.lr_jump import lr_jump
from holdfast.signals.schema import MISSING
from holdfast.signals.view import SignalView

STEPS = np.arange(400)


def view(*, rise: float, lr: np.ndarray, seed: int = 0, weights: float = 1.0, start: float = 0.05) -> SignalView:
    noise = np.random.default_rng(seed).normal(0, 0.03, 400)
    loss = 0.12 + start * np.exp(-STEPS / 80) + noise + np.where(STEPS < 250, 0.0, rise)
    norm = np.where(STEPS % 20, MISSING, np.where(STEPS < 250, 6.0, weights * 6.0))
    return SignalView({"step": STEPS, "loss": loss, "lr": lr, "weight_norm": norm})


JUMPED = np.where(STEPS < 250, 1e-3, 1e-1)


def test_a_loss_that_is_a_little_higher_since_the_jump_is_reported_with_the_rate_before_it() -> None:
    found = lr_jump(view(rise=0.03, lr=JUMPED))
    assert found is not None and (found.code, found.onset) == ("loss-divergence", 250)
    assert (found.evidence["lr_jumped_at"], found.evidence["lr_before"]) == (250, 1e-3)


def test_a_smaller_rise_is_enough_where_the_weights_have_become_twice_as_large() -> None:
    assert lr_jump(view(rise=0.015, lr=JUMPED)) is None
    assert lr_jump(view(rise=0.015, lr=JUMPED, weights=5.0)) is not None
    assert lr_jump(view(rise=-0.015, lr=JUMPED, weights=5.0)) is None, "it learns better"
    assert lr_jump(view(rise=0.3, lr=JUMPED, weights=5.0, start=4.0)) is not None, "however high the loss was at first"


def test_a_schedule_that_begins_again_does_not_hide_the_jump_before() -> None:
    lr = np.where(STEPS < 250, 1e-3, np.where(STEPS < 330, 1e-1, np.where(STEPS < 335, 1e-3, 1e-1)))
    found = lr_jump(view(rise=0.03, lr=lr))
    assert found is not None and found.onset == 250


@every_case(
    ("rise", "lr"),
    [
        (0.03, np.full(400, 1e-3)),
        (0.03, np.where(STEPS < 250, 1e-3, 5e-3)),
        (0.03, np.where(STEPS < 20, 1e-1, JUMPED)),
        (-0.03, JUMPED),
        (0.03, np.where(STEPS < 380, 1e-3, 1e-1)),
    ],
    ids=["no jump", "a small jump", "a warm restart", "a warm-up that ends", "too early to tell"],
)
def test_anything_less_is_left_alone(rise: float, lr: np.ndarray) -> None:
    assert lr_jump(view(rise=rise, lr=lr)) is None


@every_case("seed", range(20))
def test_a_jump_without_a_rise_is_left_alone(seed: int) -> None:
    assert lr_jump(view(rise=0.0, lr=JUMPED, seed=seed)) is None
