from __future__ import annotations

import json
from typing import Any

from holdfast.probe.compact import compact_run
from holdfast.signals.schema import TABLES


def test_every_table_is_listed_with_its_rows_and_columns(holdfast: Any, training: Any) -> None:
    training(steps=1234)
    done = holdfast("tables")
    assert done.code == 0 and done.err == ""
    for name in (*TABLES, "python.torch_trace"):
        assert any(line.startswith(f"{name} ") for line in done.out.splitlines()), name
    assert "1,234" in done.out and "holdfast_seconds" in done.out
    assert max(map(len, done.out.splitlines())) <= 100


def test_an_empty_table_says_why_and_a_full_one_does_not(holdfast: Any, training: Any) -> None:
    training()
    by_name = {one["table"]: one for one in json.loads(holdfast("tables", "--json").out)}
    assert by_name["parameters"]["empty_because"] == TABLES["parameters"].empty_because
    assert by_name["steps"]["empty_because"] == "" and by_name["steps"]["rows"] == 30
    assert "no step was sampled yet" in " ".join(holdfast("tables").out.split())


def test_json_tells_what_each_column_means(holdfast: Any, training: Any) -> None:
    training()
    by_name = {one["table"]: one for one in json.loads(holdfast("tables", "--json").out)}
    assert list(by_name["steps"]["columns"]) == ["rank", "part", *TABLES["steps"].column_names]
    assert by_name["steps"]["columns"]["lr"] == "learning rate of the first parameter group"
    assert "rank" not in by_name["processes"]["columns"]
    assert list(by_name["python.torch_trace"]["columns"]) == ["step", "module", "stage", "duration", "allocated", "time", "rank"]


def test_rows_are_counted_over_ranks_and_whatever_their_form(holdfast: Any, training: Any) -> None:
    training(steps=1500)
    recorder = training(steps=10, rank=1)
    compact_run(recorder.run)
    assert list((recorder.run.path / "rank-0" / "steps").glob("*.parquet"))
    assert json.loads(holdfast("tables", "--json").out)[0]["rows"] == 1510


def test_a_target_that_is_no_run_ends_with_2(holdfast: Any) -> None:
    done = holdfast("tables", "-t", "nothing")
    assert done.code == 2 and done.err.startswith("error: there is no run 'nothing'") and done.out == ""
