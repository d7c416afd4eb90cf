"""Other tools' logs, as they lie about on people's disks."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from every_case import every_case

from holdfast.errors import LogUnreadable
from holdfast.logs.open import open_log
from holdfast.logs.parse_number import parse_number
from holdfast.logs.roles import role_of
from holdfast.signals.curves import Curves


def only(path: Path, text: str) -> Curves:
    path.write_text(text, encoding="utf-8")
    (curves,) = open_log(path)
    return curves


def test_the_padded_names_and_several_losses_of_ultralytics_are_one_loss_for_each_split(tmp_path: Path) -> None:
    text = "  epoch, train/box_loss, train/cls_loss, metrics/mAP50(B), metrics/mAP50-95(B), val/box_loss, val/cls_loss, lr/pg0\n"
    rows = "".join(f"  {n}, {2 - n / 10}, 1.0, {n / 10}, {n / 20}, 3.0, 0.5, 0.01\n" for n in range(6))
    curves = only(tmp_path / "results.csv", text + rows)
    assert curves.train_loss is not None and curves.val_loss is not None
    np.testing.assert_allclose(curves.train_loss.values, [3.0, 2.9, 2.8, 2.7, 2.6, 2.5])
    np.testing.assert_allclose(curves.val_loss.values, 3.5)
    assert curves.metrics[0].name == "metrics/mAP50-95(B)" and curves.metrics[0].split == "val"
    assert curves.of("lr")[0].values[0] == 0.01


def test_the_sparse_rows_of_lightning_keep_each_value_at_its_own_step(tmp_path: Path) -> None:
    text = "epoch,step,train_loss_epoch,val_loss\n0,50,,0.65\n0,50,0.69,\n1,101,,0.62\n1,101,0.60,\n"
    curves = only(tmp_path / "metrics.csv", text)
    assert curves.train_loss is not None and curves.val_loss is not None
    assert list(curves.train_loss.steps) == [50, 101] and list(curves.val_loss.values) == [0.65, 0.62]


def test_the_summary_row_of_the_trainer_is_no_point_of_the_loss(tmp_path: Path) -> None:
    history = [{"step": s, "epoch": s / 10, "loss": 1.0 / s, "learning_rate": 1e-4} for s in range(1, 8)]
    history += [{"step": 7, "eval_loss": 0.3, "eval_accuracy": 0.9}, {"step": 7, "train_loss": 0.5, "train_runtime": 12.0}]
    curves = only(tmp_path / "trainer_state.json", json.dumps({"log_history": history, "max_steps": 7}))
    assert curves.train_loss is not None and len(curves.train_loss) == 7
    assert curves.planned_steps == 7 and [metric.name for metric in curves.metrics] == ["eval_accuracy"]


@every_case(
    ("lines", "loss", "val"),
    [
        (["step 0: train loss 4.5, val loss 4.6", "step 250: train loss 2.5, val loss 2.6"], [4.5, 2.5], [4.6, 2.6]),
        (["iter 0: loss 4.2, time 100ms, mfu 3.2%", "iter 10: loss 3.1, time 90ms, mfu 3.3%"], [4.2, 3.1], None),
        (["Epoch 1/3", "loss: 0.9 - val_loss: 1.0", "Epoch 2/3", "loss: 0.8 - val_loss: 0.9"], [0.9, 0.8], [1.0, 0.9]),
        (["Epoch 3/10 | train_loss=0.5 | IoU: 0.6413 | LR: 0.0001", "Epoch 4/10 | train_loss=0.4 | IoU: 0.65"], [0.5, 0.4], None),
        (["{'loss': 2.5, 'grad_norm': 1.0, 'epoch': 0.1}", "{'loss': nan, 'epoch': 0.2}"], [2.5, math.nan], None),
        (["[epoch 1] Train Loss: 1,25 Val Loss: 1,30", "[epoch 2] Train Loss: 1,05 Val Loss: 1,20"], [1.25, 1.05], [1.3, 1.2]),
        (["10%|#   | loss=9\r 50%|## | loss=8\rEpoch 1: loss=0.7", "10%|#   | loss=9\rEpoch 2: loss=0.6"], [0.7, 0.6], None),
        (["0 val 10.9", "0 train 10.93", "1 train 10.88"], [10.93, 10.88], [10.9]),
    ],
    ids=["nanogpt", "iterations", "keras", "bars", "dict", "comma", "tqdm", "bare"],
)  # fmt: skip
def test_a_text_log_of_a_usual_shape_is_read(
    lines: list[str], loss: list[float], val: list[float] | None, tmp_path: Path
) -> None:
    curves = only(tmp_path / "train.log", "some words before\n" + "\n".join(lines) + "\n")
    assert curves.train_loss is not None
    np.testing.assert_allclose(curves.train_loss.values, loss)
    assert (curves.val_loss is None) == (val is None)
    if val is not None and curves.val_loss is not None:
        np.testing.assert_allclose(curves.val_loss.values, val)


def test_several_runs_in_one_file_are_told_apart(tmp_path: Path) -> None:
    one = "".join(f"{epoch},{1 / (epoch + 1)}\n" for epoch in range(4))
    path = tmp_path / "log.csv"
    path.write_text("epoch,loss\n" + one + one)
    assert [len(curves.train_loss or ()) for curves in open_log(path)] == [4, 4]


def test_a_resumed_run_that_writes_steps_again_is_one_run_with_its_newest_values(tmp_path: Path) -> None:
    text = "step,loss\n" + "".join(f"{s},{9}\n" for s in range(10)) + "".join(f"{s},{1}\n" for s in range(6, 14))
    curves = only(tmp_path / "log.csv", text)
    assert curves.train_loss is not None
    assert list(curves.train_loss.values) == [9] * 6 + [1] * 8


def test_a_validation_column_that_is_zero_throughout_was_never_measured(tmp_path: Path) -> None:
    curves = only(tmp_path / "log.csv", "epoch,loss,val_loss\n" + "".join(f"{e},0.5,0\n" for e in range(9)))
    assert curves.val_loss is None


@every_case("delimiter", [";", "\t", "|"])
def test_other_delimiters_and_a_byte_order_mark_are_understood(delimiter: str, tmp_path: Path) -> None:
    rows = [["epoch", "loss", "val_loss"], ["0", "1.5", "1.6"], ["1", "1.2", "1.4"]]
    curves = only(tmp_path / "log.csv", "\ufeff" + "\n".join(delimiter.join(row) for row in rows) + "\n")
    assert curves.train_loss is not None and list(curves.train_loss.values) == [1.5, 1.2]


@every_case(
    ("content", "word"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"\x00\x01\x02" * 50, "binary"),
        (b"hello\nworld\n", "no loss"),
        (b'{"a": "b"}', "no loss"),
    ],
)
def test_what_is_no_log_is_refused_in_words(content: bytes, word: str, tmp_path: Path) -> None:
    path = tmp_path / "file.log"
    path.write_bytes(content)
    with pytest.raises(LogUnreadable, match=word):
        open_log(path)


def test_bytes_that_are_not_text_do_not_stop_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"caf\xe9 \xff\xfe\nEpoch 1 loss: 0.5\nEpoch 2 loss: 0.4\n")
    (curves,) = open_log(path)
    assert curves.train_loss is not None and list(curves.train_loss.values) == [0.5, 0.4]


@every_case(
    ("text", "value"),
    [
        ("0.5", 0.5),
        ("-1e-3", -1e-3),
        ("62.5%", 62.5),
        ("1,234.5", 1234.5),
        ("0,0312", 0.0312),
        ("tensor(0.5, device='cuda')", 0.5),
    ],
)
def test_a_number_is_read_however_it_is_written(text: str, value: float) -> None:
    assert parse_number(text) == value
    assert parse_number("abc") is None and math.isnan(parse_number("nan") or 0.0) and parse_number("-inf") == -math.inf


@every_case(
    ("name", "role", "split"),
    [
        ("train/box_loss", "loss", "train"),
        ("eval_loss", "loss", "val"),
        ("val_accuracy", "metric", "val"),
        ("metrics/mAP50-95(B)", "metric", "val"),
        ("x/lr0", "lr", "train"),
        ("learning_rate", "lr", "train"),
        ("grad_norm", "norm", "train"),
        ("eval_samples_per_second", "other", "val"),
        ("train_runtime", "seconds", "train"),
        ("data_time", "data_seconds", "train"),
        ("test_acc", "metric", "test"),
    ],
)
def test_a_column_is_known_by_its_name(name: str, role: str, split: str) -> None:
    found = role_of(name)
    assert (found.role, found.split) == (role, split)
