"""CSV and JSONL files whose columns turn out to hold something else than their beginning says."""

from __future__ import annotations

import json
from pathlib import Path

import made_data as made
import numpy as np
import pytest
from every_case import every_case

from holdfast.data.cleaned import skip_list
from holdfast.data.validate import Settings, validate

ROWS, LATE = 250_000, 220_000


def written(path: Path, late: str, early: str = "{0}") -> Path:
    lines = ((early if row < LATE else late).format(row % 97) + f",{row:020},{row % 2}\n" for row in range(ROWS))
    path.write_text("a,number,label\n" + "".join(lines))
    return path


@every_case(
    ("early", "late"), [("{0}", "{0}.5"), ("{0}", "word{0}"), ("", "{0}"), ("", "word{0}"), ("2024-01-01", "not known {0}")]
)
def test_a_column_may_change_what_it_holds_far_down(tmp_path: Path, early: str, late: str) -> None:
    report = validate(written(tmp_path / "table.csv", late, early), Settings())
    codes = {one.code for one in report.problems}
    assert "table-unreadable" not in codes
    assert sum(report.splits.values()) == ROWS, "every row was read once"


def test_line_breaks_in_quoted_words_do_not_end_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    rows = (f'"line one of {row}\nline two, ""quoted"" {"x" * 60}",{row % 2}\n' for row in range(60_000))
    path.write_text("text,label\n" + "".join(rows))
    report = validate(path, Settings())
    assert "table-unreadable" not in {one.code for one in report.problems}
    assert sum(report.splits.values()) == 60_000


@every_case("word", ["", "  ", "NaN", "null", "N/A"])
def test_rows_without_a_label_are_told_and_left_out(word: str, tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    rows = [f"{chance.normal()},{('cat', 'dog')[number % 2]}" for number in range(40)]
    rows[3], rows[30] = f"0.25,{word}", f"0.75,{word}"
    made.write(tmp_path / "x.csv", "\n".join(["a,label", *rows]) + "\n")
    report = validate(tmp_path, Settings())
    (problem,) = report.problems
    assert (problem.code, problem.count, problem.example) == ("label-missing", 2, "x.csv: row 3 has no label")
    assert report.classes == {"cat": 19, "dog": 19}
    assert skip_list(report, str(tmp_path), Settings()) == ["x.csv:3", "x.csv:30"]


def test_a_class_that_is_called_none_is_a_class(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    rows = [f"{chance.normal()},{('none', 'NA')[number % 2]}" for number in range(40)]
    made.write(tmp_path / "x.csv", "\n".join(["a,label", *rows]) + "\n")
    assert validate(tmp_path, Settings()).problems == []


def test_lines_of_json_with_other_keys_are_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.data.formats.tables._BLOCK", 2048)
    chance = np.random.default_rng(0)
    rows: list[dict[str, object]] = [{"a": chance.normal(), "label": "cat" if number % 2 else "dog"} for number in range(300)]
    for number in range(200, 300):
        rows[number]["late"] = {"x": number % 7, "y": [float(chance.normal())] * (number % 3)}
    rows[3]["label"] = None
    made.write(tmp_path / "x.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
    report = validate(tmp_path, Settings())
    assert report.splits == {"all": 300} and report.classes == {"cat": 149, "dog": 150}
    told = {problem.code: problem.example for problem in report.problems}
    assert told["label-missing"] == "x.jsonl: row 3 has no label"
    assert told["non-finite-input"] == "x.jsonl: late.x has 200 NaN of 300, first in row 0"


@every_case("line", ["{", "[1, 2]", "nonsense", '{"a": 1', '{"a": "\\ud800\xff"}'])
def test_a_line_that_is_no_row_is_named_and_the_others_are_read(line: str, tmp_path: Path) -> None:
    made.write(tmp_path / "x.jsonl", ('{"a": 1}\n' * 30 + line + "\n" + '{"a": 2}\n' * 9).encode("latin-1"))
    report = validate(tmp_path, Settings())
    (problem,) = (one for one in report.problems if one.code == "table-unreadable")
    assert problem.count == 1 and problem.example.startswith("x.jsonl:31: ") and report.splits == {"all": 39}


@every_case("value", ['"word"', "[1]", '{"b": 1}', "true"])
def test_a_column_of_json_with_values_of_different_types_is_told_and_all_rows_are_read(value: str, tmp_path: Path) -> None:
    made.write(tmp_path / "x.jsonl", '{"a": 1}\n{"a": 2}\n' * 15 + f'{{"a": {value}}}\n')
    report = validate(tmp_path, Settings())
    assert {problem.code: problem.example for problem in report.problems}["column-mixed"] == "x.jsonl: column a"
    assert report.splits == {"all": 31} and "table-unreadable" not in [problem.code for problem in report.problems]


def test_nan_as_python_writes_it_into_json_is_found(tmp_path: Path) -> None:
    made.write(tmp_path / "x.jsonl", "".join(json.dumps({"a": float(row)}) + "\n" for row in (*range(30), "nan", "inf")))
    (problem,) = validate(tmp_path, Settings()).problems
    assert problem.code == "non-finite-input" and problem.evidence["in_files"] == {"x.jsonl": [30, 31]}


def test_a_table_in_another_encoding_is_told(tmp_path: Path) -> None:
    rows = "name,a\n" + "".join(f"café {number},{number}\n" for number in range(30))
    for encoding, code, detail in (
        ("latin-1", "table-encoding", "x.csv: column name"),
        ("utf-16", "table-unreadable", "x.csv: its text is UTF-16; save it as UTF-8"),
    ):
        made.write(tmp_path / "x.csv", rows.encode(encoding))
        (problem,) = (one for one in validate(tmp_path, Settings()).problems if one.code.startswith("table"))
        assert (problem.code, problem.example) == (code, detail)
    made.write(tmp_path / "x.csv", rows.encode("utf-8-sig"))
    assert validate(tmp_path, Settings()).problems == []


@every_case("name, content", [("x.csv", "a,b\n"), ("x.csv", ""), ("x.jsonl", ""), ("x.jsonl", "\n\n")])
def test_a_table_without_rows_is_not_sound(name: str, content: str, tmp_path: Path) -> None:
    made.write(tmp_path / name, content)
    (problem,) = validate(tmp_path, Settings()).problems
    assert problem.code == "table-unreadable" and ("it has no rows" in problem.example or "Empty CSV file" in problem.example)


def test_of_two_columns_with_one_name_both_are_checked(tmp_path: Path) -> None:
    rows = [f"{number * 7 % 31},{number * 5 % 29},x" for number in range(30)]
    made.write(tmp_path / "x.csv", "\n".join(["a,a,b", "nan,3,y", *rows]) + "\n")
    found = {problem.code: problem.example for problem in validate(tmp_path, Settings()).problems}
    assert found["non-finite-input"] == "x.csv: a has 1 NaN of 31, first in row 0"
