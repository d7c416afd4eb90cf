"""Statistics of tables, arrays, trees, data sets of code and text: every value is in a bin or counted outside of it."""

from __future__ import annotations

import json
from pathlib import Path

import made_data as made
import numpy as np
import pytest
from every_case import every_case

from holdfast.data.columns import Column, Part, TableSet
from holdfast.data.stats.figures import Bars, Histogram, Statistics
from holdfast.data.stats.tables import table_statistics
from holdfast.data.stats.take import take_statistics
from holdfast.data.validate import Settings, validate
from holdfast.errors import UsageError


def taken(path: Path | str, **settings: object) -> Statistics:
    return take_statistics(path, Settings(**settings))  # type: ignore[arg-type]


def histogram(found: Statistics, key: str) -> Histogram:
    return next(one for one in found.figures if isinstance(one, Histogram) and one.key == key)


def bars(found: Statistics, key: str) -> Bars:
    return next(one for one in found.figures if isinstance(one, Bars) and one.key == key)


def of_chunks(*chunks: np.ndarray, format: str = "array") -> Histogram:
    """The figure of one column that comes in these chunks."""
    part = Part("all", "x.npy", lambda: iter([{"x": Column(one)} for one in chunks]))
    data = TableSet(format, Path(), [part])  # type: ignore[arg-type]
    return histogram(table_statistics(data, label=None, only=frozenset(), progress=None), "column:x")


@every_case("kind", made.TABLES)
def test_columns_of_every_kind_of_table_are_binned_by_split(kind: str, tmp_path: Path) -> None:
    made.table(tmp_path, kind)
    found = taken(tmp_path)
    assert found.splits == made.ROWS
    assert bars(found, "classes").counts == {
        str(one): {split: int((made.columns(split)["label"] == one).sum()) for split in made.ROWS} for one in range(3)
    }
    for name in ("a", "b", "n"):
        plot = histogram(found, f"column:{name}")
        whole = np.concatenate([made.columns(split)[name] for split in made.ROWS])
        for split in made.ROWS:
            assert plot.counts[split] == np.histogram(made.columns(split)[name], plot.edges)[0].tolist()
        assert plot.below + plot.above + sum(plot.totals) == len(whole)
        assert plot.low == pytest.approx(whole.min()) and plot.high == pytest.approx(whole.max())
        assert plot.mean == pytest.approx(whole.mean()) and plot.median == pytest.approx(np.median(whole), abs=0.5)


def test_rows_of_different_lengths_are_told_once_for_all_columns_that_share_them(tmp_path: Path) -> None:
    made.table(tmp_path, "root")
    found = taken(tmp_path)
    plot = histogram(found, "entries:hits")
    lengths = np.concatenate([made.columns(split)["n"] % 4 for split in made.ROWS])
    assert plot.totals == np.bincount(lengths).tolist() and (plot.low, plot.high) == (0, 3)
    assert sum(histogram(found, "column:hits").totals) == lengths.sum()


def test_nan_and_inf_are_counted_and_spoil_no_other_number() -> None:
    plot = of_chunks(np.array([1.0, np.nan, 3.0]), np.array([np.inf, 2.0, -np.inf, np.nan]))
    assert (plot.nan, plot.inf, plot.low, plot.high, plot.mean, sum(plot.totals)) == (2, 2, 1.0, 3.0, 2.0, 3)


def test_one_absurd_value_does_not_squeeze_all_others_into_one_bin() -> None:
    values = np.random.default_rng(0).normal(size=20_000)
    plot = of_chunks(np.append(values, 1e30))
    assert plot.above >= 1 and plot.high == 1e30
    assert sum(count > 100 for count in plot.totals) > 10
    assert plot.median == pytest.approx(0, abs=0.1)


def test_sorted_rows_in_many_chunks_are_spread_over_all_bins() -> None:
    plot = of_chunks(*np.arange(200_000).reshape(20, -1))
    assert plot.below + plot.above == 0 and plot.totals == [6250] * 32
    assert plot.median == pytest.approx(100_000, rel=0.001)


@every_case(
    "values",
    [
        np.array([-1.7e308, 1.7e308, 0.0]), np.full(9, 5e-324), np.full(9, np.nan), np.array([2**64 - 1, 0, 7], dtype=np.uint64),
        np.r_[np.zeros(1000), 1e9], np.array([1.0, 1.0 + 2**-52]), np.full(5, 3.5), np.zeros(0), np.zeros(4, np.float16),
        np.r_[0.0, np.full(50, 5e-324), 1e300],
    ],
)  # fmt: skip
@every_case("format", ["array", "dataset"])
def test_no_range_of_numbers_is_too_odd_for_bins(values: np.ndarray, format: str) -> None:
    plot = of_chunks(values, format=format)
    finite = values[np.isfinite(values)]
    assert all(one <= other for one, other in zip(plot.edges, plot.edges[1:], strict=False))
    if len(finite):
        assert sum(plot.totals) + plot.below + plot.above == len(finite)


def test_a_table_whose_rows_name_their_split_and_class_is_counted_by_both(tmp_path: Path) -> None:
    rows = [f"{number}.5,{'train' if number % 4 else 'test'},{'signal' if number % 3 else 'noise'}" for number in range(240)]
    (tmp_path / "all.csv").write_text("\n".join(["energy,split,label", *rows]))
    found = taken(tmp_path / "all.csv", classes=frozenset({"noise"}))
    assert found.splits == {"train": 60, "test": 20}
    assert bars(found, "classes").counts == {"noise": {"train": 60, "test": 20}}
    assert sum(histogram(found, "column:energy").totals) == 80
    with pytest.raises(UsageError, match="no class ghost"):
        taken(tmp_path / "all.csv", classes=frozenset({"ghost"}))


def test_words_are_counted_and_the_many_that_are_not_listed_too(tmp_path: Path) -> None:
    rows = [f"w{number % 70},{number}" for number in range(700)]
    (tmp_path / "words.csv").write_text("\n".join(["word,value", *rows]))
    counted = bars(taken(tmp_path / "words.csv"), "column:word")
    assert len(counted.counts) == 50 and counted.others == 20 and counted.whole == 700


def test_a_table_that_breaks_off_is_named_and_counted_as_far_as_it_goes(tmp_path: Path) -> None:
    made.table(tmp_path, "parquet")
    (tmp_path / "val.parquet").write_bytes((tmp_path / "val.parquet").read_bytes()[:200])
    found = taken(tmp_path)
    assert list(found.unreadable) == ["val.parquet"] and found.splits == {"train": 300}


def test_a_data_set_of_code_is_gone_through_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "class Numbers:\n    asked = []\n    def __len__(self): return 900\n    def __getitem__(self, place):\n"
        "        self.asked.append(place)\n        if place == 7: raise ValueError('bad')\n"
        "        return [place / 9.0, place % 5.0], place % 2\n"
        "def make(): return Numbers()\ndef one_shot(): return iter([([1.0, 2.0], 0)] * 30)\n"
    )
    (tmp_path / "own_numbers.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = taken("own_numbers:make")
    import own_numbers  # type: ignore[import-not-found]

    assert sorted(own_numbers.Numbers.asked) == list(range(900))
    assert found.samples == 899 and list(found.unreadable) == ["all:7"]
    assert bars(found, "classes").counts == {"0": {"all": 450}, "1": {"all": 449}}
    plot = histogram(found, "column:input")
    assert plot.low == 0 and plot.high == pytest.approx(899 / 9)
    assert taken("own_numbers:one_shot").samples == 30


def test_text_is_counted_by_tokens_with_their_names_and_what_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("sea ship sea\n\nwhale sea\n")
    (tmp_path / "val.txt").write_text("ship whale\n")
    vocabulary = tmp_path / "vocab.json"
    vocabulary.write_text(json.dumps({"[UNK]": 0, "sea": 1, "ship": 2}))
    found = taken(tmp_path, tokenizer=vocabulary)
    assert found.splits == {"train": 5, "val": 2} and found.unit == "tokens"
    assert bars(found, "frequency").counts == {
        "sea": {"train": 3, "val": 0}, "ship": {"train": 1, "val": 1}, "[UNK]": {"train": 1, "val": 1},
    }  # fmt: skip
    assert bars(found, "unknown").counts["unknown"] == {"train": 1, "val": 1}
    lengths = histogram(found, "line-length")
    assert (lengths.low, lengths.high, sum(lengths.totals)) == (0, 3, 4)


def test_text_without_a_tokenizer_is_counted_by_characters(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abca\ncc\n", encoding="utf-8")
    found = taken(tmp_path / "a.txt")
    assert found.unit == "characters" and found.splits == {"all": 8}
    assert bars(found, "frequency").totals == {"c": 3, "a": 2, repr("\n"): 2, "b": 1}
    assert found.splits == validate(tmp_path / "a.txt", Settings()).splits


def test_token_ids_in_a_file_are_counted(tmp_path: Path) -> None:
    np.array([5, 5, 7, 65535], dtype="<u2").tofile(tmp_path / "train.bin")
    found = taken(tmp_path / "train.bin")
    assert found.unit == validate(tmp_path / "train.bin", Settings()).unit == "tokens"
    assert found.splits == {"train": 4} and bars(found, "frequency").totals == {"5": 2, "7": 1, "65535": 1}
