"""MLflow's two stores, in the layout that MLflow 2 and 3 write."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from holdfast.errors import LogUnreadable
from holdfast.logs.open import open_log
from holdfast.logs.search import find_logs

TABLES = """
CREATE TABLE experiments (experiment_id INTEGER PRIMARY KEY, name VARCHAR(256), lifecycle_stage VARCHAR(32));
CREATE TABLE runs (run_uuid VARCHAR(32) PRIMARY KEY, name VARCHAR(250), experiment_id INTEGER, status VARCHAR(9),
                   start_time BIGINT, end_time BIGINT, lifecycle_stage VARCHAR(20));
CREATE TABLE metrics (key VARCHAR(250), value FLOAT, timestamp BIGINT, run_uuid VARCHAR(32), step BIGINT DEFAULT 0,
                      is_nan BOOLEAN, PRIMARY KEY (key, timestamp, step, run_uuid, value, is_nan));
INSERT INTO experiments VALUES (1, 'digits', 'active');
INSERT INTO runs VALUES ('aa', 'first', 1, 'FINISHED', 10, 20, 'active'), ('bb', 'second', 1, 'RUNNING', 30, NULL, 'active'),
                        ('cc', 'thrown away', 1, 'FINISHED', 5, 6, 'deleted');
"""  # fmt: skip


def database(path: Path) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(TABLES)
    rows = [("train/loss", 1.0 - step / 10, step, run, step, 0) for run in ("aa", "bb", "cc") for step in range(6)]
    rows += [
        ("val_loss", 0.0, 3, "bb", 3, 1),
        ("val_loss", 1.7976931348623157e308, 4, "bb", 4, 0),
        ("val_loss", 0.5, 2, "bb", 2, 0),
    ]
    rows += [("accuracy", value, time, "aa", 0, 0) for time, value in enumerate((0.1, 0.5, 0.9))]
    connection.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()
    return path


def test_each_run_of_the_database_has_its_curves_and_deleted_ones_are_left_out(tmp_path: Path) -> None:
    first, second = open_log(database(tmp_path / "mlflow.db"))
    assert (first.name, second.name) == ("mlflow.db · digits/first", "mlflow.db · digits/second")
    assert first.train_loss is not None and second.val_loss is not None
    np.testing.assert_allclose(first.train_loss.values, [1.0, 0.9, 0.8, 0.7, 0.6, 0.5])
    np.testing.assert_array_equal(second.val_loss.values, [0.5, np.nan, np.inf])


def test_a_metric_that_was_logged_without_steps_is_counted(tmp_path: Path) -> None:
    first, _ = open_log(database(tmp_path / "mlflow.db"))
    (accuracy,) = first.metrics
    assert list(accuracy.steps) == [0, 1, 2] and list(accuracy.values) == [0.1, 0.5, 0.9]


def test_a_database_that_a_training_has_locked_is_read(tmp_path: Path) -> None:
    path = database(tmp_path / "mlflow.db")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    try:
        assert len(open_log(path)) == 2
    finally:
        writer.close()


def test_another_database_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "songs.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE songs (name TEXT)")
    connection.commit()
    connection.close()
    with pytest.raises(LogUnreadable, match="not MLflow's"):
        open_log(path)


def store(root: Path) -> Path:
    for number, run in enumerate(("0a1b", "2c3d")):
        folder = root / "mlruns" / "123" / run
        (folder / "metrics" / "train").mkdir(parents=True)
        (folder / "tags").mkdir()
        (folder / "tags" / "mlflow.runName").write_text(f"run {number}")
        (folder / "meta.yaml").write_text(f"status: 3\nstart_time: {99 - number}\n")
        lines = "".join(f"{1700000000000 + step} {1 / (step + 1)} {step * 10}\n" for step in range(5))
        (folder / "metrics" / "train" / "loss").write_text(lines + "1700000000009 0.0")
    (root / "mlruns" / "123" / "meta.yaml").write_text("name: digits\n")
    return root / "mlruns"


def test_the_file_store_is_found_once_and_holds_its_runs_without_half_a_line(tmp_path: Path) -> None:
    assert list(find_logs(tmp_path)) == [] and list(find_logs(store(tmp_path).parent)) == [tmp_path / "mlruns"]
    first, second = open_log(tmp_path / "mlruns")
    assert (first.name, second.name) == ("mlruns · run 1", "mlruns · run 0")
    assert first.train_loss is not None and list(first.train_loss.steps) == [0, 10, 20, 30, 40]
    (alone,) = open_log(tmp_path / "mlruns" / "123" / "0a1b")
    assert alone.train_loss is not None and len(alone.train_loss) == 5
