"""Metrics in what a script prints."""

from __future__ import annotations

import pytest
from every_case import every_case

from holdfast.logs.printed_metrics import is_recorded, metrics_in


@every_case(
    ("line", "wanted"),
    [
        ("val_acc 0.94", ("val_acc", "val", 0.94)),
        ("Accuracy: 352/357", ("Accuracy", None, 352 / 357)),
        ("mAP50: 0.61", ("mAP50", None, 0.61)),
        ("Test set: Accuracy: 9842/10000 (98%)", ("Accuracy", "test", 0.9842)),
        ("{'eval_loss': 0.5, 'epoch': 1.0}", ("eval_loss", "val", 0.5)),
        ("train_acc: 0.75", ("train_acc", "train", 0.75)),
        ("Accuracy of the network on the 10000 test images: 55 %", ("accuracy", "test", 55.0)),
    ],
)
def test_a_metric_is_read_with_its_split(line: str, wanted: tuple[str, str | None, float]) -> None:
    (found,) = metrics_in([line])
    assert (found.name, found.split, found.value, found.back) == (*wanted, 0)


@every_case("line", ["loss: 0.5 lr 0.1", "step 7/100, 3.2 it/s", "epoch 3 done in 12.5 s", "saved to run-7/model.pt"])
def test_what_is_no_metric_of_an_evaluation_is_left_alone(line: str) -> None:
    assert metrics_in([line]) == []


def test_beside_a_held_out_accuracy_the_other_one_is_the_trainings() -> None:
    assert [(one.name, one.split) for one in metrics_in(["acc 0.9 val_acc 0.8"])] == [("acc", "train"), ("val_acc", "val")]


def test_a_name_that_comes_twice_in_a_line_is_of_its_neighbours_split() -> None:
    read = metrics_in(["epoch 3 | train loss 0.2 acc 0.91 | val loss 0.3 acc 0.88"])
    assert [(metric.name, metric.split, metric.value) for metric in read if "acc" in metric.name] == [
        ("acc", "train", 0.91), ("acc", "val", 0.88)
    ]  # fmt: skip


@every_case("lines", [[f"Epoch {n}: val_acc 0.{n}" for n in (1, 2, 5)], [f"Epoch {n}\nval_acc 0.{n}" for n in (1, 2, 5)]])
def test_lines_that_come_together_are_as_far_apart_as_their_epochs(lines: list[str]) -> None:
    found = metrics_in("\n".join(lines).splitlines())
    assert [(one.value, one.back) for one in found] == [(0.1, 4), (0.2, 3), (0.5, 0)]


def test_lines_that_come_together_and_name_no_epoch_follow_each_other() -> None:
    assert [one.back for one in metrics_in(["Accuracy: 1/4", "Accuracy: 2/4", "Accuracy: 3/4"])] == [2, 1, 0]


def test_a_setting_that_was_printed_before_them_is_no_metric() -> None:
    assert {one.name for one in metrics_in(["target accuracy: 0.99", "Accuracy: 1/4", "Accuracy: 2/4"])} == {"Accuracy"}


def test_a_metric_of_an_evaluation_among_those_of_many_steps_is_no_setting() -> None:
    lines = ["loss 0.7 acc 0.5", "val_acc 0.4678", *["loss 0.6 acc 0.5"] * 4]  # read together, on a busy machine
    assert [one.value for one in metrics_in(lines) if one.name == "val_acc"] == [0.4678]


@pytest.mark.parametrize(
    ("name", "value", "recorded", "wanted"),
    [
        ("val_acc", 0.94, (True, "accuracy", 0.9412), True),
        ("val_acc", 94.1, (True, "accuracy", 0.9412), True),
        ("val_acc", 0.91, (True, "accuracy", 0.9412), False),
        ("val_f1", 0.94, (True, "accuracy", 0.94), False),
        ("val_loss", 0.51, (True, "loss", 0.53), True),
        ("test_loss", 0.51, (False, "loss", 0.53), False),
        ("test_loss", 0.53, (False, "loss", 0.5301), True),
    ],
)
def test_a_metric_that_was_recorded_is_recognised(
    name: str, value: float, recorded: tuple[bool, str, float], wanted: bool
) -> None:
    assert is_recorded(name, value, [recorded]) is wanted


def test_a_metric_has_the_epoch_that_its_line_names() -> None:
    assert [metric.epoch for metric in metrics_in(["epoch 3 val_acc 0.5", "epoch 4 val_acc 0.6"])] == [3, 4]
