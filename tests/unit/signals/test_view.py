from __future__ import annotations

import math

import numpy as np

from holdfast.signals.schema import MISSING, MISSING_INT
from holdfast.signals.view import Evaluation, SignalView


def test_only_values_that_were_measured_at_updates_that_were_made_are_given() -> None:
    loss = np.array([1.0, MISSING, math.nan, 4.0, 5.0])
    view = SignalView({"step": np.arange(5), "loss": loss, "skipped": np.array([0, 0, 0, 1, MISSING_INT])})
    steps, values = view.last("loss", 3)
    assert steps.tolist() == [0, 2, 4]
    assert values[0] == 1.0 and math.isnan(values[1]) and values[2] == 5.0
    assert view.last("loss", 1)[0].tolist() == [4]
    assert view.first("loss", 1)[0].tolist() == [0]
    assert view.last("grad_norm", 3)[0].tolist() == [] and view.step == 4


def test_a_norm_that_is_sampled_is_found_far_back() -> None:
    norm = np.full(1000, MISSING)
    norm[::100] = np.arange(10.0)
    assert SignalView({"step": np.arange(1000), "grad_norm": norm}).last("grad_norm", 4)[1].tolist() == [6.0, 7.0, 8.0, 9.0]


def test_the_highest_value_counts_rows_that_have_left_and_none_that_come_later() -> None:
    view = SignalView({"step": np.arange(10, 14), "lr": np.array([0.1, 0.2, MISSING, 0.9])}, highest={"lr": 0.3})
    assert view.highest("lr", before=13) == 0.3
    assert view.highest("lr", before=14) == 0.9
    assert view.highest("loss", before=14) == -math.inf


def test_the_run_as_it_was_at_a_step() -> None:
    evaluated = [Evaluation(2, "val", "loss", 0.5), Evaluation(4, "val", "loss", 0.4)]
    view = SignalView({"step": np.arange(6), "loss": np.arange(6.0)}, evaluations=evaluated).until(3)
    assert view.step == 3 and len(view) == 4
    assert view.metrics() == [("val", "loss")] and view.evaluated("val", "loss")[1].tolist() == [0.5]
