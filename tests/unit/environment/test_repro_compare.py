"""The first difference between two records, in the order in which a step computes."""

from __future__ import annotations

from typing import Any

from holdfast.environment.repro.compare import first_difference


def row(step: int = 0, **changed: Any) -> dict[str, Any]:
    usual = {
        "step": step,
        "random": {"torch": "r"},
        "weights": [["0.weight", "w"]] if step == 0 else [],
        "batch": [["[0]", "b", "sorted"]],
        "output": [["0", "o"], ["1", "p"]],
        "loss": [["loss", "l"]],
        "gradient": [["0.weight", "g"]],
        "updated": [["0.weight", "u"]],
    }
    return {**usual, **changed}


def test_equal_records_have_no_difference() -> None:
    assert first_difference([row(0), row(1)], [row(0), row(1)]) is None


def test_the_earliest_stage_of_the_earliest_step_is_named() -> None:
    other = row(1, output=[["0", "o"], ["1", "X"]], loss=[["loss", "Y"]])
    found = first_difference([row(0), row(1), row(2)], [row(0), other, row(2, loss=[])])
    assert found is not None
    assert (found.step, found.stage, found.name) == (1, "output", "1")


def test_the_same_samples_in_another_order_are_told_from_other_samples() -> None:
    shuffled = first_difference([row()], [row(batch=[["[0]", "X", "sorted"]])])
    changed = first_difference([row()], [row(batch=[["[0]", "X", "others"]])])
    assert shuffled is not None and shuffled.same_samples is True
    assert changed is not None and changed.same_samples is False


def test_a_run_that_ended_earlier_differs() -> None:
    found = first_difference([row(0), row(1)], [row(0)])
    assert found is not None
    assert (found.step, found.stage) == (1, "steps")


def test_a_tensor_that_only_one_run_has_is_named() -> None:
    found = first_difference([row(gradient=[["0.weight", "g"], ["0.bias", "h"]])], [row()])
    assert found is not None
    assert (found.stage, found.name) == ("gradient", "0.bias")
