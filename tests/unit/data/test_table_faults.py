"""One fault at a time is put into sound tables, arrays and trees: it is found, and nothing else is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import made_data as made
import numpy as np
import pytest
from every_case import every_case

from holdfast.data.validate import Report, Settings, validate
from holdfast.errors import UsageError

Tables = dict[str, dict[str, np.ndarray]]
KINDS = tuple(made.TABLES)


def found(path: Path, **settings: object) -> Report:
    return validate(path, Settings(**settings))  # type: ignore[arg-type]


def nan(tables: Tables) -> None:
    tables["train"]["a"][[17, 40]] = np.nan


def infinite(tables: Tables) -> None:
    tables["train"]["b"][17] = np.inf


def sentinel(tables: Tables) -> None:
    tables["train"]["a"][[5, 17, 200]] = -999.0


def constant(tables: Tables) -> None:
    for table in tables.values():
        table["b"][:] = 4.5


def extreme(tables: Tables) -> None:
    tables["train"]["a"][17] = 5e6


def beyond_float32(tables: Tables) -> None:
    tables["train"]["a"][17] = 1e200


def clipped(tables: Tables) -> None:
    for table in tables.values():
        table["n"] = np.minimum(np.random.default_rng(len(table["n"])).integers(0, 60_000, len(table["n"])), 32767).astype(
            np.int16
        )


def repeated_row(tables: Tables) -> None:
    for column in tables["train"].values():
        column[40] = column[17]


def leaked_row(tables: Tables) -> None:
    for name, column in tables["val"].items():
        column[3] = tables["train"][name][17]


def scaled(tables: Tables) -> None:
    tables["val"]["b"] /= 255


def wider(tables: Tables) -> None:
    tables["val"]["a"] *= 40


def one_class(tables: Tables) -> None:
    for table in tables.values():
        table["label"][:] = 1


def rare_class(tables: Tables) -> None:
    for table in tables.values():
        table["label"] %= 2
    tables["train"]["label"][17] = 2


def other_shares(tables: Tables) -> None:
    tables["val"]["label"][20:] = 1


def ordered(tables: Tables) -> None:
    for table in tables.values():
        table["label"].sort()


def groups(tables: Tables) -> None:
    """Several rows of one patient, in both splits."""
    for table in tables.values():
        table["patient_id"] = np.random.default_rng(0).permutation(np.arange(len(table["a"])) // 4)


FAULTS: list[tuple[Callable[[Tables], None], set[str]]] = [
    (nan, {"non-finite-input"}),
    (infinite, {"non-finite-input"}),
    (sentinel, {"column-sentinel"}),
    (constant, {"column-constant"}),
    (extreme, {"column-extreme"}),
    (beyond_float32, {"dtype-overflow"}),
    (clipped, {"dtype-overflow"}),
    (repeated_row, {"duplicate-row"}),
    (leaked_row, {"split-leak"}),
    (scaled, {"preprocessing-mismatch"}),
    (wider, {"preprocessing-mismatch"}),
    (one_class, {"one-class"}),
    (rare_class, {"class-imbalance"}),
    (other_shares, {"split-classes-differ"}),
    (ordered, {"unshuffled-data"}),
    (groups, {"split-leak"}),
]
NOT_IN = {"csv": {clipped}, "jsonl": {clipped, infinite}}  # their numbers have no type, and JSON has no Inf
QUICK = ("csv", "jsonl", "npz", "root")
CASES = [(kind, fault, expected) for kind in KINDS for fault, expected in FAULTS if fault not in NOT_IN.get(kind, ())]


@every_case("kind", KINDS)
def test_a_sound_table_is_not_accused_of_anything(kind: str, tmp_path: Path) -> None:
    made.table(tmp_path, kind)
    report = found(tmp_path)
    assert report.problems == []
    assert report.splits == made.ROWS
    assert report.classes == {"0": 167, "1": 167, "2": 166}


def fault_name(part: object) -> str:
    return str(getattr(part, "__name__", part))


@every_case(("kind", "fault", "expected"), [case for case in CASES if case[0] in QUICK], ids=fault_name)
def test_a_fault_is_found_and_nothing_else(
    kind: str, fault: Callable[[Tables], None], expected: set[str], tmp_path: Path
) -> None:
    only_this_fault_is_found(kind, fault, expected, tmp_path)


@pytest.mark.slow
@every_case(("kind", "fault", "expected"), [case for case in CASES if case[0] not in QUICK], ids=fault_name)
def test_a_fault_is_found_in_the_other_formats_too(
    kind: str, fault: Callable[[Tables], None], expected: set[str], tmp_path: Path
) -> None:
    only_this_fault_is_found(kind, fault, expected, tmp_path)


def only_this_fault_is_found(kind: str, fault: Callable[[Tables], None], expected: set[str], tmp_path: Path) -> None:
    made.table(tmp_path, kind, fault)
    report = found(tmp_path)
    assert {problem.code for problem in report.problems} == expected
    for problem in report.problems:
        assert problem.count >= 1 and problem.example and problem.fix and problem.files


def test_the_rows_with_nan_are_named(tmp_path: Path) -> None:
    made.table(tmp_path, "csv", nan)
    (problem,) = found(tmp_path).problems
    assert problem.evidence["rows"] == [17, 40]
    assert "first in row 17" in problem.example


def test_a_sentinel_in_a_jagged_branch_is_found(tmp_path: Path) -> None:
    import awkward as ak
    import uproot

    hits = np.random.default_rng(0).normal(size=600)
    hits[[7, 99, 300]] = -999.0
    with uproot.recreate(tmp_path / "events.root") as file:
        file["events"] = {"hits": ak.unflatten(hits, np.full(200, 3))}
    (problem,) = found(tmp_path).problems
    assert problem.code == "column-sentinel" and "hits" in problem.example


def test_a_column_named_split_tells_the_splits(tmp_path: Path) -> None:
    table = made.columns("train")
    lines = ["a,b,label,split"] + [
        f"{a},{b},{label},{'val' if place % 5 == 0 else 'train'}"
        for place, (a, b, label) in enumerate(zip(table["a"], table["b"], table["label"], strict=True))
    ]
    lines.append(lines[1].replace("val", "train"))
    (tmp_path / "data.csv").write_text("\n".join(lines) + "\n")
    report = found(tmp_path)
    assert report.splits == {"train": 241, "val": 60}
    assert [problem.code for problem in report.problems] == ["split-leak"]


@every_case("rows", [10, 200, 3000])
@every_case("seed", range(3))
def test_honest_random_tables_raise_no_alarm(rows: int, seed: int, tmp_path: Path) -> None:
    """Heavy tails, counts, rare flags and ids, split at random, as they come from real measurements."""
    chance = np.random.default_rng(seed)
    for split, count in (("train", rows), ("val", max(10, rows // 4))):
        table = {
            "id": np.arange(count),
            "energy": chance.exponential(40, count),
            "momentum": chance.standard_t(3, count),
            "log_normal": chance.lognormal(0, 2, count),
            "jets": chance.poisson(2, count),
            "flag": (chance.random(count) < 0.1).astype(int) if rows > 100 else np.arange(count) % 2,
            "label": chance.permutation(np.arange(count) % 2),
        }
        made.write_csv(tmp_path, split, table)
    assert found(tmp_path).problems == []


def test_few_columns_of_small_numbers_may_repeat(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    table = {name: chance.integers(0, 3, 400) for name in ("colour", "size", "shape")}
    made.write_csv(tmp_path, "table", table)
    assert found(tmp_path).problems == []


def test_an_array_of_objects_is_reported_and_never_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (eval, (f"open({str(tmp_path / 'sprung')!r}, 'w').close()",))

    np.save(tmp_path / "x.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "y.npz", x=np.array([Trap()], dtype=object))
    report = found(tmp_path)
    assert [(problem.code, problem.count) for problem in report.problems] == [("array-pickled", 2)]
    assert not (tmp_path / "sprung").exists()


def test_a_header_that_claims_more_than_there_is_is_not_believed(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(8))
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content.replace(b"(8,), }" + b" " * 10, b"(80000000000,), }"))
    assert [problem.code for problem in found(tmp_path).problems] == ["array-unreadable"]


def test_a_header_that_is_nonsense_is_not_evaluated(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(8))
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content.replace(b"(8,), }", b"((8,((("))
    assert [problem.code for problem in found(tmp_path).problems] == ["array-unreadable"]


def test_a_table_cut_short_is_said_to_be(tmp_path: Path) -> None:
    made.table(tmp_path, "parquet")
    path = tmp_path / "val.parquet"
    path.write_bytes(path.read_bytes()[:-40])
    assert "table-unreadable" in {problem.code for problem in found(tmp_path).problems}


def test_a_label_that_is_not_there_is_an_error_that_names_the_columns(tmp_path: Path) -> None:
    made.table(tmp_path, "csv")
    with pytest.raises(UsageError) as error:
        found(tmp_path, label="kind")
    assert "a, b, n, label" in error.value.fix
