from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from holdfast.signals.journal import Journal
from holdfast.train.report import MetricsTable, Picture, Table, write_report


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def table_of(folder: Path, epochs: int = 4, **more: float) -> MetricsTable:
    table = MetricsTable(folder / "metrics.csv")
    for epoch in range(1, epochs + 1):
        values = {"train_loss": 4.0 / epoch, "map": epoch % 4 / 10, "map/cat": 0.1 * epoch, "lr": 1e-3, "seconds": 30.0}
        table.add({"epoch": epoch, "step": 50 * epoch, **values, **more})
    return table


def test_every_epoch_is_a_row(tmp_path: Path) -> None:
    table_of(tmp_path, 3)
    rows = rows_of(tmp_path / "metrics.csv")
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert list(rows[0]) == ["epoch", "step", "train_loss", "map", "map/cat", "lr", "seconds"]
    assert float(rows[2]["train_loss"]) == pytest.approx(4 / 3, rel=1e-8)


def test_a_resumed_run_replaces_the_epochs_that_it_does_again(tmp_path: Path) -> None:
    table_of(tmp_path, 5)
    resumed = MetricsTable(tmp_path / "metrics.csv", earlier=tmp_path / "metrics.csv", until_epoch=3)
    assert len(rows_of(tmp_path / "metrics.csv")) == 5, "nothing is lost before the first epoch is done again"
    resumed.add({"epoch": 4, "train_loss": 0.5, "map": 0.9})
    rows = rows_of(tmp_path / "metrics.csv")
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4"]
    assert rows[3]["train_loss"] == "0.5"
    assert resumed.rows[0] == {"epoch": 1, "step": 50, "train_loss": 4, "map": 0.1, "map/cat": 0.1, "lr": 0.001, "seconds": 30}


def test_a_damaged_table_gives_the_rows_that_can_be_read(tmp_path: Path) -> None:
    table_of(tmp_path, 3)
    path = tmp_path / "metrics.csv"
    path.write_bytes(path.read_bytes()[:-20] + b"\n\xff,broken\n")
    table = MetricsTable(path, earlier=path, until_epoch=9)
    assert [row["epoch"] for row in table.rows][:2] == [1, 2]


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    table = MetricsTable(tmp_path / "metrics.csv", writes=False)
    table.add({"epoch": 1, "map": 0.5})
    assert table.best("map") == {"epoch": 1, "map": 0.5}
    assert not (tmp_path / "metrics.csv").exists()


def test_the_best_row_is_the_first_of_the_best_and_knows_the_direction(tmp_path: Path) -> None:
    table = MetricsTable(tmp_path / "metrics.csv")
    for epoch, value in enumerate((0.2, 0.5, math.nan, 0.5, 0.1), 1):
        table.add({"epoch": epoch, "map": value, "val_loss": value})
    assert [row and row["epoch"] for row in (table.best("map"), table.best("val_loss"), table.best("f1"))] == [2, 5, None]


def test_a_disk_that_refuses_does_not_end_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.csv").mkdir()  # a file cannot take its place, not even for root
    (tmp_path / "report.html").mkdir()
    table = MetricsTable(tmp_path / "metrics.csv")
    table.add({"epoch": 1, "map": 0.1})
    table.add({"epoch": 2, "map": 0.2})
    assert capsys.readouterr().err.count("could not be written") == 1
    (tmp_path / "metrics.csv").rmdir()
    table.add({"epoch": 3, "map": 0.3})
    assert len(rows_of(table.path)) == 3, "what could not be written before comes with the next row"
    write_report(tmp_path, {}, table, {"map": 0.3}, {})
    assert "report.html could not be written" in capsys.readouterr().err


def plots_of(page: str) -> list[dict[str, Any]]:
    return [json.loads(one) for one in re.findall(r'class="holdfast-plot"><script type="application/json">(.*?)</script>', page)]


def reported(folder: Path, table: MetricsTable) -> str:
    shown = {
        "Hard cases": [Picture(Image.new("RGB", (40, 30), "red"), "a <cat> & a dog")],
        "Classes": Table(("class", "objects"), [("cat", 12_345)]),
        "Drawing": "<svg viewBox='0 0 1 1'><desc>our drawing</desc></svg>",
    }
    settings = {"architecture": "dfine-n", "data": "cells/data.yaml", "ema": 0.9998, "name": ""}
    write_report(folder, settings, table, {"map": 0.3, "map/cat": 0.4}, shown, metric="map")
    return (folder / "report.html").read_text(encoding="utf-8")


def test_the_report_shows_settings_best_epoch_curves_pictures_and_tables(tmp_path: Path) -> None:
    page = reported(tmp_path, table_of(tmp_path))
    assert "best epoch 3" in page
    assert "0.9998" in page and "cells/data.yaml" in page
    plots = plots_of(page)
    assert [one["name"] for plot in plots for one in plot["lines"]] == ["train_loss", "map", "map/cat", "lr"]
    assert all(plot["along"] == "epoch" and {"x": 3, "label": "best"}.items() <= plot["marks"][0].items() for plot in plots)
    assert "a &lt;cat&gt; &amp; a dog" in page and 'src="data:image/jpeg;base64,' in page
    assert "12,345" in page and "<desc>our drawing</desc>" in page
    assert "Nothing was found" in page


def test_the_report_needs_no_other_file(tmp_path: Path) -> None:
    page = reported(tmp_path, table_of(tmp_path))
    assert page.count("var uPlot=") == 1, "what draws the plots is in the file, once"
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    assert not re.findall(r"@import|url\(", page)


def test_the_report_tells_what_was_found_and_done(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    evidence = {"loss": 9.31, "parameters": ["a", "b"]}
    for rank in range(2):
        journal.write("finding", code="loss-spike", severity="warning", step=120, rank=rank, evidence=evidence)
    settings = {"to": 100, "lr_factor": 0.5}
    journal.write("action", action="roll-back", state="done", step=130, number=1, because="loss-spike", settings=settings)
    journal.write("checkpoint", path="checkpoints/step-100", step=100)
    page = reported(tmp_path, table_of(tmp_path))
    assert "1 warning" in page, "two ranks that report the same spike are one finding"
    assert "loss spike: loss 9.31" in page
    assert "rolled back to step 100, learning rate x 0.5 (loss spike)" in page
    assert "checkpoints/step-100" not in page
    marks = [mark for mark in plots_of(page)[0]["marks"] if mark["kind"] == "finding"]
    assert [(mark["label"], mark["tone"]) for mark in marks] == [("1", "warn")], "the finding is marked on the loss curve"


def test_a_run_of_one_epoch_has_a_report(tmp_path: Path) -> None:
    page = reported(tmp_path, table_of(tmp_path, 1))
    assert "1 epoch ·" in page and "at least two epochs" in page


def test_a_run_without_an_epoch_has_a_report(tmp_path: Path) -> None:
    assert "0 epochs" in reported(tmp_path, MetricsTable(tmp_path / "metrics.csv"))


def test_readers_never_see_half_a_file(tmp_path: Path) -> None:
    table = table_of(tmp_path, 1)
    before = (tmp_path / "metrics.csv").stat().st_ino
    table.add({"epoch": 2, "map": 0.5})
    assert (tmp_path / "metrics.csv").stat().st_ino != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.csv"]
