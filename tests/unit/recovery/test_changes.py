"""Which learning rate goes with a change."""

from __future__ import annotations

import numpy as np
import pytest
from every_case import every_case

from holdfast.recovery.changes import propose

SOME = np.full(50, 2.0)


@every_case(
    ("what", "factor"),
    [
        ("deep supervision", 0.75),
        ("deep_supervision False -> True; ema None -> True", 0.7),
        ("stronger augmentation", 0.875),
        ("degrees 10.0 -> 25.0; epochs 10 -> 20", 0.875),
        ("deep_supervision False -> True; ema 0.9998 -> 0.0", 0.75),
    ],
)
def test_the_usual_factor_where_the_gradients_say_nothing(what: str, factor: float) -> None:
    found = propose(what, SOME, SOME)
    assert found is not None and found.factor == factor


@every_case("what", ["deep_supervision True -> False", "augment True -> False", "mosaic 1.0 -> 0.5", "lr0 0.1 -> 0.01"])
def test_what_is_turned_off_or_down_asks_for_no_lower_learning_rate(what: str) -> None:
    assert propose(what, SOME, SOME) is None


def test_measured_gradients_decide_where_they_say_more() -> None:
    found = propose("deep supervision", SOME, 1.8 * SOME)
    assert found is not None and found.factor == pytest.approx(1 / 1.8, abs=1e-3)
    assert "1.80 times" in found.reason


def test_a_cut_is_never_below_a_half() -> None:
    found = propose("a new loss", SOME, 9 * SOME)
    assert found is not None and found.factor == 0.5


def test_a_change_that_nothing_speaks_against_proposes_nothing() -> None:
    assert propose("another logger", SOME, 1.05 * SOME) is None
    assert propose("another logger") is None


def test_a_larger_batch_may_take_a_larger_rate() -> None:
    found = propose("batch 32 -> 128", SOME, SOME)
    assert found is not None and found.factor == 2.0
