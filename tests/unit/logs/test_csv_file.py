"""Tables as people keep them: with other delimiters, summed up in their last row, half-written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from every_case import every_case

from holdfast.logs.open import open_log
from holdfast.signals.curves import Curves


def only(path: Path, text: str) -> Curves:
    path.write_bytes(text.encode())
    (curves,) = open_log(path)
    return curves


def losses(curves: Curves) -> list[float]:
    assert curves.train_loss is not None
    return list(curves.train_loss.values)


ROWS = [(1, 1.8371, 1.9125), (2, 1.2513, 1.4377), (3, 0.9722, 1.2116), (4, 0.8911, 1.3048), (5, 0.7615, 1.4191)]
BODY = "".join(f"{epoch},{loss},{val}\n" for epoch, loss, val in ROWS)


@every_case(
    "last",
    [
        "mean,1.14264,1.45714\n",
        ",1.14264,1.45714\n",
        "Total,5.7,7.2\n",
        f"6,{sum(row[1] for row in ROWS) / 5},{sum(row[2] for row in ROWS) / 5}\n",
        "best,0.9722,1.2116\n",
    ],
    ids=["named", "without an epoch", "total", "means", "best"],
)
def test_a_last_row_that_sums_the_others_up_is_no_epoch(last: str, tmp_path: Path) -> None:
    assert losses(only(tmp_path / "log.csv", "epoch,loss,val_loss\n" + BODY + last)) == [row[1] for row in ROWS]


def test_the_best_row_written_once_more_at_the_end_is_no_epoch(tmp_path: Path) -> None:
    head = "epoch,loss,val_loss,val_auc\n"
    body = "".join(f"{epoch},{loss},{val},{0.81234 + epoch / 97}\n" for epoch, loss, val in ROWS)
    again = f"6,0.9722,1.2116,{0.81234 + 3 / 97}\n"
    assert losses(only(tmp_path / "log.csv", head + body + again)) == [row[1] for row in ROWS]


def test_an_ordinary_last_row_stays(tmp_path: Path) -> None:
    assert len(losses(only(tmp_path / "log.csv", "epoch,loss,val_loss\n" + BODY + "6,0.7013,1.5012\n"))) == 6
    still = "".join(f"{epoch},0.69315,0.69412\n" for epoch in range(1, 9))
    assert len(losses(only(tmp_path / "still.csv", "epoch,loss,val_loss\n" + still))) == 8


def test_a_decimal_comma_never_parts_thousands_beside_another_delimiter(tmp_path: Path) -> None:
    curves = only(tmp_path / "log.csv", "epoch;loss;val_loss\n1;2,5;2,75\n2;1,312;1,500\n3;1,05;1,2\n")
    assert losses(curves) == [2.5, 1.312, 1.05]


@every_case(
    "text",
    [
        "epoch,loss\r\n1,0.5\r\n2,0.25\r\n",
        "epoch\tloss\n1\t0.5\n2\t0.25\n",
        "# epoch loss\n1 0.5\n2 0.25\n",
        "| epoch | loss |\n|-------|------|\n| 1 | 0.5 |\n| 2 | 0.25 |\n",
        '"epoch","loss"\n"1","0.5"\n"2","0.25"\n',
        "epoch,loss\n1,0.5\nepoch,loss\n2,0.25\n",
        "epoch,loss\n1,0.5%\n2,0.25 %\n",
        "epoch,loss\n1,tensor(0.5)\n2,tensor(0.25)\n",
    ],
    ids=["windows", "tabs", "blanks", "drawn", "quoted", "header again", "percent", "tensor"],
)
def test_a_table_is_read_however_it_is_written(text: str, tmp_path: Path) -> None:
    assert losses(only(tmp_path / "log.txt", text)) == [0.5, 0.25]


@every_case("end", ["4,0.4471", "4,0.44", "4,", "4"])
def test_half_of_a_last_row_gives_no_wrong_number(end: str, tmp_path: Path) -> None:
    curves = only(tmp_path / "log.csv", "epoch,loss,val_loss\n1,0.9112,0.95\n2,0.6213,0.7\n3,0.5114,0.6\n" + end)
    assert losses(curves)[:3] == [0.9112, 0.6213, 0.5114] and set(losses(curves)[3:]) <= {0.4471}


def test_columns_that_pandas_filled_with_nan_were_measured_where_numbers_stand(tmp_path: Path) -> None:
    rows = "".join(
        f"{step},{1 / (step + 1)},nan\n" if step % 5 else f"{step},{1 / (step + 1)},{2 / (step + 1)}\n" for step in range(20)
    )
    curves = only(tmp_path / "log.csv", "step,loss,val_loss\n" + rows)
    assert curves.val_loss is not None and list(curves.val_loss.steps) == [0, 5, 10, 15]


def test_a_loss_that_became_nan_stays_nan(tmp_path: Path) -> None:
    rows = "".join(f"{step},{1 / (step + 1) if step < 6 else 'nan'}\n" for step in range(12))
    assert np.isnan(losses(only(tmp_path / "log.csv", "step,loss\n" + rows))).sum() == 6


def test_a_list_of_numbers_is_named_by_its_file(tmp_path: Path) -> None:
    assert losses(only(tmp_path / "train_loss.txt", "0.9\n0.8\n7.5e-01\n")) == [0.9, 0.8, 0.75]


def test_a_series_that_tensorboard_exported_is_named_by_its_file(tmp_path: Path) -> None:
    curves = only(tmp_path / "run-a-tag-val_loss.csv", "Wall time,Step,Value\n1700000000.1,0,2.5\n1700000001.1,10,2.25\n")
    assert curves.val_loss is not None and list(curves.val_loss.values) == [2.5, 2.25]


def test_a_metric_that_is_zero_throughout_was_measured_where_the_validation_loss_was(tmp_path: Path) -> None:
    rows = [f"{epoch},{2.0 - 0.01 * epoch},{1.9 - 0.01 * epoch},0" for epoch in range(10)]
    (tmp_path / "a.csv").write_text("\n".join(["epoch,train/loss,val/loss,metrics/mAP50(B)", *rows]) + "\n")
    (curves,) = open_log(tmp_path / "a.csv")
    assert [curve.name for curve in curves.metrics] == ["metrics/mAP50(B)"]


def test_a_table_of_one_row_is_a_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("epoch, train/loss, val/loss\n1, 1.08, nan\n")
    (curves,) = open_log(tmp_path / "a.csv")
    assert curves.train_loss is not None and curves.train_loss.values.tolist() == [1.08]
