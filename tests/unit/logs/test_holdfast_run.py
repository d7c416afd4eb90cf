"""Curves of Holdfast's own runs."""

from __future__ import annotations

import numpy as np

from holdfast.logs.holdfast_run import of_equal_sums


def test_losses_summed_over_more_and_more_backward_calls_do_not_rise() -> None:
    backwards = np.array([1, 1, 2, 2, 4, 4, 4, 4, 4])
    assert of_equal_sums(3.0 * backwards, backwards).tolist() == [12.0] * 9


def test_losses_of_the_same_number_of_backward_calls_stay_as_they_are() -> None:
    loss = np.array([0.1, np.nan, 0.3], np.float32)
    for backwards in (np.full(3, 2), np.full(3, -1)):
        assert np.array_equal(of_equal_sums(loss, backwards), loss, equal_nan=True)
