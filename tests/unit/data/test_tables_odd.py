"""Tables in several files, with a column of splits, with gaps in some chunks only, or with one long text among short ones."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import made_data as made
import numpy as np
import pytest
from every_case import every_case

from holdfast.data.cleaned import skip_list, write_cleaned
from holdfast.data.column_summary import ColumnSummary, row_numbers
from holdfast.data.columns import Column
from holdfast.data.validate import Report, Settings, report_from, validate
from holdfast.data.visualize.sample import Wish
from holdfast.data.visualize.visualize import visualize

MEGABYTE = 1 << 20


def found(path: Path, **settings: object) -> Report:
    return validate(path, Settings(**settings))  # type: ignore[arg-type]


def codes(report: Report) -> set[str]:
    return {problem.code for problem in report.problems}


def skipped(path: Path) -> list[str]:
    """What a loader is told to skip, by the report as it is and as it comes out of the cache."""
    report = found(path)
    lines = skip_list(report, str(path), Settings())
    assert skip_list(report_from(report.as_row()), str(path), Settings()) == lines
    return lines


def measured(rows: int, seed: int) -> dict[str, np.ndarray]:
    chance = np.random.default_rng(seed)
    return {"a": chance.normal(size=rows), "b": chance.normal(10, 3, rows), "label": chance.permutation(np.arange(rows) % 2)}


def write_parts(folder: Path, change: object = None) -> None:
    """Two files of 100 rows in each split."""
    tables = {
        f"{split}/part-{part}": measured(100, seed=part + 2 * (split == "val")) for split in ("train", "val") for part in (0, 1)
    }
    if callable(change):
        change(tables)
    for name, table in tables.items():
        made.write_csv(folder, name, table)


def write_with_splits(path: Path, table: dict[str, np.ndarray]) -> None:
    """Every second row belongs to train; the others to val."""
    names = np.array(["train", "val"], object)[np.arange(len(table["a"])) % 2]
    made.write_csv(path.parent, path.stem, {**table, "split": names})


# --- Rows are named by their file, and by their number in it.


def put_nan(tables: dict[str, dict[str, np.ndarray]]) -> None:
    tables["train/part-1"]["a"][7] = np.nan


def test_a_row_of_the_second_file_of_a_split_is_named_by_its_number_in_that_file(tmp_path: Path) -> None:
    write_parts(tmp_path / "parts", put_nan)
    assert skipped(tmp_path / "parts") == ["train/part-1.csv:7"]
    (problem,) = found(tmp_path / "parts").problems
    assert problem.files == ["train/part-1.csv"]
    assert problem.example == "train/part-1.csv: a has 1 NaN of 200, first in row 7"


def test_a_cleaned_list_of_the_second_file_names_a_row_that_it_has(tmp_path: Path) -> None:
    write_parts(tmp_path / "parts", put_nan)
    list(write_cleaned(found(tmp_path / "parts"), str(tmp_path / "parts"), Settings(), tmp_path / "to"))
    (written,) = [path for path in (tmp_path / "to").rglob("*") if path.is_file()]
    assert written.name == "skip.txt" and written.read_text().splitlines()[-1:] == ["train/part-1.csv:7"]


def test_a_row_of_a_split_in_several_files_is_drawn(tmp_path: Path) -> None:
    write_parts(tmp_path / "parts", put_nan)
    answer = visualize(str(tmp_path / "parts"), Settings(jobs=1), Wish(samples=4), tmp_path / "to")
    assert [one.name for one in answer.samples if one.marks] == ["train/part-1.csv row 7"]


def test_rows_that_repeat_or_leak_between_files_are_named_in_the_file_of_the_later_one(tmp_path: Path) -> None:
    def put_equal(tables: dict[str, dict[str, np.ndarray]]) -> None:
        for name in ("a", "b", "label"):
            tables["train/part-1"][name][3] = tables["train/part-0"][name][40]
            tables["val/part-1"][name][9] = tables["train/part-1"][name][50]

    write_parts(tmp_path / "parts", put_equal)
    report = found(tmp_path / "parts")
    assert codes(report) == {"duplicate-row", "split-leak"}
    assert sorted(skipped(tmp_path / "parts")) == ["train/part-1.csv:3", "val/part-1.csv:9"]
    said = {problem.code: problem.example for problem in report.problems}
    assert said["split-leak"] == "row 9 of val/part-1.csv is row 50 of train/part-1.csv too"
    assert said["duplicate-row"] == "train/part-1.csv: 1 of 200 rows in 2 files repeat an earlier one, first row 3"


@every_case("size", [1 << 22, 1024], ids=["one chunk", "many chunks"])
def test_with_a_column_of_splits_rows_are_named_by_their_number_in_the_file(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.data.formats.tables._BLOCK", size)
    table = measured(300, seed=0)
    table["a"][51] = np.nan
    for column in table.values():
        column[202] = column[100]  # twice in train
        column[205] = column[110]  # in val, as in train
    write_with_splits(tmp_path / "split.csv", table)
    assert skipped(tmp_path / "split.csv") == ["split.csv:51", "split.csv:202", "split.csv:205"]
    problem = next(one for one in found(tmp_path).problems if one.code == "non-finite-input")
    assert problem.example == "split.csv: a has 1 NaN of 150, first in row 51"


def test_a_table_that_has_nothing_but_a_column_of_splits_is_read(tmp_path: Path) -> None:
    made.write(tmp_path / "split.csv", "split\n" + "train\nval\n" * 20)
    assert found(tmp_path).splits == {"train": 20, "val": 20}


# --- Columns with gaps in some chunks only.


def test_gaps_in_a_late_chunk_of_whole_numbers_are_found(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    ages = np.random.default_rng(0).integers(18, 90, 70_000)
    there = ~np.isin(np.arange(70_000), np.arange(66_000, 66_100))
    table = {"age": pa.array(ages, mask=~there), "a": np.random.default_rng(1).normal(size=70_000)}
    pq.write_table(pa.table(table), tmp_path / "people.parquet")
    (problem,) = found(tmp_path).problems
    assert problem.code == "non-finite-input"
    assert problem.example == "people.parquet: age has 100 NaN of 70,000, first in row 66,000"
    assert problem.evidence["in_files"] == {"people.parquet": list(range(66_000, 66_100))}


@every_case("gap_in", ["train", "val"])
def test_a_copy_of_rows_leaks_though_one_file_has_a_gap(tmp_path: Path, gap_in: str) -> None:
    chance = np.random.default_rng(0)
    lines = [f"{chance.integers(18, 90)},{chance.integers(0, 10**6)},{chance.integers(0, 10**6)}" for _ in range(400)]
    for split, rows in (("train", lines), ("val", lines[:200])):
        gap = [",5,6"] if split == gap_in else []
        made.write(tmp_path / f"{split}.csv", "\n".join(["age,a,b", *rows, *gap]) + "\n")
    (leak,) = [problem for problem in found(tmp_path).problems if problem.code == "split-leak"]
    assert leak.count == 200


def test_rows_of_one_patient_leak_though_one_patient_is_not_known(tmp_path: Path) -> None:
    for split, rows in (("train", 300), ("val", 200)):
        table = measured(rows, seed=rows)
        patients = np.random.default_rng(0).permutation(np.arange(rows) // 4).astype(object)
        made.write_csv(tmp_path, split, {**table, "patient_id": patients})
    path = tmp_path / "train.csv"
    first, second, *rest = path.read_text().splitlines()
    path.write_text("\n".join([first, second.rpartition(",")[0] + ",", *rest]) + "\n")
    report = found(tmp_path)
    assert codes(report) == {"split-leak", "non-finite-input"}
    (leak,) = [problem for problem in report.problems if problem.code == "split-leak"]
    assert leak.count == 50 and leak.evidence["keys"] == ["patient_id"]


def test_patients_who_are_not_known_are_not_taken_for_one_patient(tmp_path: Path) -> None:
    for split, rows, first in (("train", 300, 0), ("val", 200, 1000)):
        patients = [str(first + row // 4) if row > 3 else "" for row in range(rows)]
        made.write_csv(tmp_path, split, {**measured(rows, seed=rows), "patient_id": np.array(patients, object)})
    assert codes(found(tmp_path)) == {"non-finite-input"}


def test_a_column_of_numbers_in_one_file_and_of_words_in_the_other_is_read(tmp_path: Path) -> None:
    for part, odd in ((0, ""), (1, "n/a"), (2, "many")):
        table = {**measured(60, seed=part), "n": np.arange(60).astype(object)}
        table["n"][5] = odd
        made.write_csv(tmp_path, f"train/part-{part}", table)
    assert codes(found(tmp_path)) == set()


def test_a_column_of_words_that_is_empty_in_one_file_has_no_numbers(tmp_path: Path) -> None:
    for part in (0, 1):
        words = np.array(["" if part == 0 else f"word {row}" for row in range(60)], object)
        made.write_csv(tmp_path, f"train/part-{part}", {**measured(60, seed=part), "said": words})
    assert codes(found(tmp_path)) == set()


def test_a_column_that_is_wider_in_a_later_file_is_not_at_the_limit_of_its_first_type() -> None:
    narrow, wide = np.r_[np.full(50, 127), np.arange(100)].astype(np.int8), np.arange(0, 30_000, 10).astype(np.int16)
    summary = ColumnSummary(narrow.dtype)
    summary.add(Column(narrow))
    assert (summary.dtype, summary.at_limits) == (np.int8, 50)
    summary.add(Column(wide))
    assert (summary.dtype, summary.at_limits) == (np.int16, 0)


def test_values_at_the_limit_of_a_type_of_another_order_of_bytes_are_counted_in_every_chunk() -> None:
    values = np.r_[np.full(50, 32767), np.arange(100)].astype(">i2")
    summary = ColumnSummary(values.dtype)
    for _ in range(3):
        summary.add(Column(values))
    assert (str(summary.whole), summary.at_limits) == ("int16", 150)


def test_values_at_the_limit_of_their_type_are_found_where_other_chunks_have_gaps(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    values = np.minimum(np.random.default_rng(0).integers(0, 60_000, 3000), 32767)
    column = pa.array(values, type=pa.int16(), mask=np.arange(3000) == 2999)
    pq.write_table(pa.table({"n": column}), tmp_path / "table.parquet", row_group_size=1000)
    report = found(tmp_path)
    assert codes(report) == {"dtype-overflow", "non-finite-input"}
    assert "at the limit of int16" in next(one.example for one in report.problems if one.code == "dtype-overflow")


@every_case("kind", [np.int8, np.uint8, np.int64, np.uint64, np.float32, np.float64, np.bool_])
def test_equal_numbers_have_equal_hashes_whatever_their_type(kind: type) -> None:
    values = np.array([0, 1, 1, 0])
    assert (numbers(values.astype(kind)) == numbers(values)).all()


def test_large_whole_numbers_that_only_differ_in_the_last_place_have_other_hashes() -> None:
    for kind in (np.int64, np.uint64):
        values = np.arange(2**60, 2**60 + 100, dtype=kind)
        assert len(np.unique(numbers(values))) == 100
    assert len(np.unique(numbers(np.array([2**53 - 1, 2**53, 2**53 + 1, -(2**53), -(2**53) - 1])))) == 5


def test_what_is_no_number_has_one_hash() -> None:
    assert len(np.unique(numbers(np.array([np.nan, -np.nan, np.float64("nan")])))) == 1
    assert len(np.unique(numbers(np.array([0.0, -0.0])))) == 1


# --- One long text among short ones.


def numbers(values: np.ndarray) -> np.ndarray:
    return row_numbers({"x": Column(values)}, ["x"])


def test_one_long_text_does_not_make_all_others_as_large(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    words = [f"text {number}" for number in range(5000)]
    words[77] = "long " * 4000  # 20 KB: as an array of words that are all as long, 400 MB
    kinds = np.array(["yes", "no"], object)[np.arange(5000) % 2]
    kinds[2:4] = "yes " * 5000, "no"
    pq.write_table(pa.table({"said": words, "label": kinds}), tmp_path / "texts.parquet")
    tracemalloc.start()
    try:
        report = found(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * MEGABYTE
    assert report.classes["no"] == 2500 and len(report.classes) == 3


def test_a_text_has_the_same_hash_whatever_stands_beside_it() -> None:
    words = np.array(["a", "b", "a", "é" * 50_000, "b\0", ""], object)
    together = numbers(words)
    assert [int(numbers(words[place : place + 1])[0]) for place in range(len(words))] == together.tolist()
    assert len(set(together.tolist())) == 5
    assert (numbers(np.array(["a", "b", "a"])) == together[:3]).all()
    assert (numbers(np.array([b"a", b"b", b"a"])) == together[:3]).all()


def test_texts_leak_whatever_the_chunks_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = np.array([f"text {number} " * (1 + number % 50) for number in range(300)], object)
    for split, some in (("train", words), ("val", np.r_[[f"other {number}" for number in range(100)], words[120:125]])):
        made.write_csv(tmp_path, split, {"said": some, "a": np.arange(len(some)) * 0 + np.char.str_len(some.astype(str))})
    for size in (1 << 22, 2000, 20_000):
        monkeypatch.setattr("holdfast.data.formats.tables._BLOCK", size)
        (leak,) = [one for one in found(tmp_path).problems if one.code == "split-leak"]
        assert leak.evidence["in_files"] == {"val.csv": [100, 101, 102, 103, 104]}


def test_many_long_texts_are_not_kept(tmp_path: Path) -> None:
    summary = ColumnSummary(np.dtype(object))
    tracemalloc.start()
    try:
        for chunk in range(40):
            summary.add(Column(np.array([f"{chunk} {number} " * 5000 for number in range(20)], object)))
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert summary.distinct is not None and len(summary.distinct) == 800
    assert kept < 4 * MEGABYTE


@every_case("name", ["", "Unnamed: 0", "__index_level_0__", "PassengerId"])
def test_a_column_that_numbers_the_rows_hides_no_leak_and_is_no_mismatch(tmp_path: Path, name: str) -> None:
    chance = np.random.default_rng(0)
    rows = [f"{a:.4f},{b:.4f},{b > 0:d}" for a, b in chance.normal(size=(800, 2))]
    head = f"{name},a,b,label"
    written(tmp_path / "train.csv", head, (f"{number},{row}" for number, row in enumerate(rows)))
    written(tmp_path / "val.csv", head, (f"{number},{row}" for number, row in enumerate(rows[:200], 800)))
    codes = {one.code for one in validate(tmp_path, Settings()).problems}
    assert codes == {"split-leak"}


def written(path: Path, head: str, rows: Iterable[str]) -> None:
    path.write_text("\n".join([head, *rows, ""]))


def test_labels_that_are_more_or_fewer_than_their_samples_are_told(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    for split, rows, labels in (("train", 60, 60), ("val", 40, 39)):
        np.save(tmp_path / f"x_{split}.npy", chance.normal(size=(rows, 3)))
        np.save(tmp_path / f"y_{split}.npy", chance.integers(0, 2, labels))
    (problem,) = (one for one in found(tmp_path).problems if one.code == "array-lengths")
    assert problem.example == "y_val.npy: y has 39 rows, x has 40" and problem.count == 1


def test_nan_in_complex_numbers_is_found(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(40, 2)).view(np.complex128)
    values[7] = complex(1.0, np.nan)
    np.save(tmp_path / "a.npy", values[:, 0])
    assert [problem.example for problem in found(tmp_path).problems] == ["a.npy: a.imag has 1 NaN of 40, first in row 7"]


@pytest.mark.parametrize("shape, dtype", [("(1099511627776, 0)", "<f4"), ("(1099511627776,)", "|S0")])
def test_an_array_of_endless_rows_without_a_value_is_refused(shape: str, dtype: str, tmp_path: Path) -> None:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
    (problem,) = found(tmp_path).problems
    assert problem.code == "array-unreadable" and "rows without a value" in problem.example


DAMAGED_FOOTERS = """
import contextlib, io, sys
from pathlib import Path
import pyarrow as pa
import pyarrow.parquet as pq
from holdfast.data.formats.tables import _parquet

buffer, path = io.BytesIO(), Path(sys.argv[1])
pq.write_table(pa.table({"a": ["x", "y"]}), buffer, compression="none", store_schema=False)
content = buffer.getvalue()
footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
for place in range(footer, len(content) - 8):
    for value in (0x06, 0x46):
        path.write_bytes(content[:place] + bytes([value]) + content[place + 1 :])
        with contextlib.suppress(Exception):
            list(_parquet(path))
print(len(content) - 8 - footer, "bytes changed")
"""


def test_a_damaged_parquet_footer_does_not_end_the_process(tmp_path: Path) -> None:
    """PyArrow's own description of a column aborts on some of these."""
    command = [sys.executable, "-c", DAMAGED_FOOTERS, str(tmp_path / "a.parquet")]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0 and answer.stdout.endswith("bytes changed\n"), answer.stderr
