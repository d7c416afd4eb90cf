"""Data sets of the user's own code whose samples are not all alike: that is told or passed over, and never ends the command."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from every_case import every_case
from PIL import Image

from holdfast.data.cache import Cache
from holdfast.data.columns import BYTES, Chunk
from holdfast.data.formats.torch_dataset import as_columns
from holdfast.data.validate import Report, Settings, judged, validate
from holdfast.errors import UsageError

ROWS = 80
BOXES = np.array([[1.0, 1.0, 5.0, 6.0], [2.0, 2.0, 7.0, 7.0]])


class Listed:
    """Any samples, one after the other."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, place: int) -> Any:
        return self.samples[place]


def image(seed: int, shape: tuple[int, ...] = (3, 8, 8)) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def labelled(labels: list[Any]) -> Listed:
    return Listed([(image(seed), label) for seed, label in enumerate(labels)])


def detection(target: Any, other: Any) -> Listed:
    """The same boxes everywhere but in the tenth sample."""
    return Listed([(image(seed), other if seed == 9 else target) for seed in range(ROWS)])


def found(data: Any) -> Report:
    return judged(as_columns(data), Settings(), Cache(None))


def codes(report: Report) -> list[str]:
    return [problem.code for problem in report.problems]


def chunks(data: Any) -> list[Chunk]:
    return list(as_columns(data).parts[0].chunks())


def test_a_nan_after_whole_numbers_is_found() -> None:
    labels: list[Any] = [seed % 4 for seed in range(ROWS)]
    labels[7] = float("nan")
    report = found(labelled(labels))
    assert "non-finite-input" in codes(report)
    assert "label has 1 NaN of 80, first in row 7" in report.problems[0].example


@every_case("first", [0, True, np.uint8(3), np.float32(1.0), torch.tensor(2)])
def test_a_number_after_one_of_another_type_stays_what_it_is(first: Any) -> None:
    (chunk,) = chunks(labelled([first, 2.5, 300, -1]))
    assert chunk["label"].values.tolist() == [float(first), 2.5, 300.0, -1.0]


def test_whole_numbers_stay_whole_numbers() -> None:
    (chunk,) = chunks(labelled([3, 1, 2]))
    assert chunk["label"].values.dtype == np.int64
    assert found(labelled([seed % 4 for seed in range(ROWS)])).classes == {"0": 20, "1": 20, "2": 20, "3": 20}


@every_case("rows", [ROWS, 600])
@every_case("odd", [8, 500])
@every_case(("usual", "other"), [(1, "rain"), ("rain", 1), ("rain", float("nan")), (0.5, "rain"), (1, None)])
def test_words_among_numbers_do_not_end_the_command(usual: Any, other: Any, odd: int, rows: int) -> None:
    samples = [{"image": image(seed), "weather": usual if seed != odd else other} for seed in range(rows)]
    report = found(Listed(samples))
    assert report.splits == {"all": rows}
    assert set(codes(report)) <= {"column-constant"}


def test_boxes_with_words_for_labels_are_judged_and_their_classes_named() -> None:
    flat = BOXES.copy()
    flat[1, 3] = 2.0
    words = [["cat", "dog"], ["dog", "cat"], ["cat", "cat"], ["dog"]]
    samples = [(image(seed), {"boxes": BOXES[: len(words[seed % 4])], "labels": words[seed % 4]}) for seed in range(ROWS)]
    assert codes(found(Listed(samples))) == []
    assert found(Listed(samples)).classes == {"cat": 80, "dog": 60}
    samples[9] = (image(9), {"boxes": flat, "labels": ["cat", "dog"]})
    (problem,) = found(Listed(samples)).problems
    assert (problem.code, problem.files) == ("box-zero-area", ["all[9]"])
    assert "dog [2, 2, 7, 2]" in problem.example


@every_case(
    ("target", "words"),
    [
        ({"boxes": np.ones((2, 5)), "labels": np.array([1, 2])}, "5 numbers each"),
        ({"boxes": np.ones((2, 4, 2)), "labels": np.array([1, 2])}, "(2, 4, 2)"),
        ({"boxes": np.ones(5), "labels": np.array([1])}, "(5,)"),
        ({"boxes": BOXES, "labels": np.array([1])}, "1 label for 2 boxes"),
        ({"boxes": [[1.0, 1.0, 5.0], [1.0]], "labels": [1, 2]}, "cannot be read as numbers"),
        ({"boxes": "1 1 5 6", "labels": [1]}, "cannot be read as numbers"),
        ({"boxes": [{"left": 1}], "labels": [1]}, "cannot be read as numbers"),
        ({"boxes": None, "labels": None}, "cannot be read as numbers"),
        ({"boxes": BOXES, "labels": [[1], [2, 3]]}, "labels"),
    ],
)
def test_odd_targets_are_left_out_and_told(target: Any, words: str) -> None:
    good = {"boxes": BOXES, "labels": np.array([1, 2])}
    report = found(detection(good, target))
    assert report.splits == {"all": ROWS} and codes(report) == []
    (note,) = report.notes
    assert "all[9]" in note and words in note
    (note,) = found(detection(target, target)).notes
    assert "all[0]" in note and words in note


@every_case(
    "target",
    [
        {"boxes": torch.tensor(BOXES, requires_grad=True), "labels": torch.tensor([1, 2])},
        {"boxes": BOXES.tolist(), "labels": [1, 2]},
        {"boxes": BOXES.astype(np.float16), "labels": [1.0, 2.0]},
        {"boxes": BOXES},
        {"boxes": BOXES, "labels": None},
        {"boxes": np.zeros((0, 4)), "labels": np.zeros(0, np.int64)},
        {"boxes": torch.zeros(0), "labels": torch.zeros(0)},
        {"boxes": [], "labels": []},
        {"boxes": BOXES, "labels": np.array([[1], [2]])},
        {"boxes": list(torch.tensor(BOXES)), "labels": list(torch.tensor([1, 2]))},
    ],
)
def test_boxes_in_any_usual_dress_are_taken(target: Any) -> None:
    report = found(detection({"boxes": BOXES, "labels": np.array([1, 2])}, target))
    assert report.notes == [] and codes(report) == [] and report.splits == {"all": ROWS}


def test_a_label_of_a_box_that_is_nan_is_found() -> None:
    report = found(detection({"boxes": BOXES, "labels": [1, 2]}, {"boxes": BOXES, "labels": [1, float("nan")]}))
    assert codes(report) == ["non-finite-input"]


class Photos:
    """Pictures that are opened when they are asked for and read only when they are looked at, as torchvision hands them out."""

    def __init__(self, folder: Path) -> None:
        self.files = [folder / f"{seed}.png" for seed in range(30)]
        for seed, file in enumerate(self.files):
            Image.fromarray((image(seed, (48, 64, 3)) * 255).astype(np.uint8)).save(file)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, place: int) -> tuple[Image.Image, int]:
        return Image.open(self.files[place]), place % 2


def test_a_picture_that_is_cut_and_read_late_is_a_sample_that_cannot_be_read(tmp_path: Path) -> None:
    data = Photos(tmp_path)
    data.files[4].write_bytes(data.files[4].read_bytes()[:2000])
    report = found(data)
    assert codes(report) == ["sample-unreadable"] and report.splits == {"all": 29}
    assert "all:4" in report.problems[0].example


class Stream:
    """Samples without places."""

    def __iter__(self) -> Iterator[Any]:
        for seed in range(30):
            yield image(seed), seed % 2
        raise OSError("no line to the server")


def test_a_stream_that_breaks_is_told_and_what_came_before_counts() -> None:
    report = found(Stream())
    assert codes(report) == ["sample-unreadable"] and report.splits == {"all": 30}
    assert "no line to the server" in report.problems[0].example


class Large:
    """Images that are made when they are asked for."""

    def __init__(self, rows: int, shape: tuple[int, ...], dtype: type = np.float32) -> None:
        self.rows, self.shape, self.dtype = rows, shape, dtype

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, place: int) -> tuple[Any, int]:
        return np.random.default_rng(place).integers(0, 255, self.shape, dtype=np.uint8).astype(self.dtype), place % 2


@every_case("dtype", [np.float32, np.uint8])
def test_chunks_of_images_have_a_limit_in_bytes(dtype: type) -> None:
    total = 0
    for chunk in as_columns(Large(100, (3, 256, 256), dtype)).parts[0].chunks():
        assert sum(column.values.size * 8 for column in chunk.values()) <= BYTES
        total += chunk["label"].rows
    assert total == 100


def test_images_of_all_sizes_come_in_their_order() -> None:
    samples = [(image(seed, (3, 8, 8) if seed % 7 else (3, 900, 900)), seed) for seed in range(40)]
    assert [row for chunk in chunks(Listed(samples)) for row in chunk["label"].values.tolist()] == list(range(40))


def test_small_samples_still_come_by_the_hundred() -> None:
    assert [chunk["label"].rows for chunk in chunks(labelled(list(range(600))))] == [256, 256, 88]


def test_chunks_of_long_texts_have_a_limit_too() -> None:
    data = Listed([("word " * (2_000_000 if seed % 10 == 0 else 2), seed % 2) for seed in range(60)])
    many = [sum(map(len, chunk["input"].values)) for chunk in chunks(data)]
    assert max(many) <= BYTES and len(many) == 2


def test_the_memory_of_a_scan_does_not_grow_with_the_images() -> None:
    """300 of 3 × 256 × 256 in float32 took 860 MB; each is 0.8 MB."""
    tracemalloc.start()
    try:
        report = judged(as_columns(Large(120, (3, 256, 256))), Settings(), Cache(None))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert report.splits == {"all": 120}
    assert peak < 4 * BYTES


CODE = """
import numpy as np

class Set:
    def __len__(self):
        return 40
    def __getitem__(self, place):
        boxes, labels = np.array([[1.0, 1.0, 5.0, 6.0, 0.3]]), ["cat"]
        image = np.random.default_rng(place).normal(size=(3, 8, 8)).astype(np.float32)
        return image, {"boxes": boxes + place % 2, "labels": labels, "weight": 1 if place != 9 else float("nan")}
"""


def test_a_factory_of_odd_samples_is_validated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd_sets.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    sys.modules.pop("odd_sets", None)
    report = validate("odd_sets:Set", Settings())
    assert "non-finite-input" in codes(report) and "5 numbers each" in report.notes[0]


def test_a_factory_that_returns_nothing_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no_sets.py").write_text("def made():\n    pass\n")
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("no_sets", None)
    with pytest.raises(UsageError, match="not a data set but NoneType"):
        validate("no_sets:made", Settings())


class Raising(Listed):
    """Every box is bad, and one sample raises."""

    def __getitem__(self, place: int) -> Any:
        if place == 1200:
            raise KeyError("lost")
        return super().__getitem__(place)


def test_a_sample_that_raises_behind_many_bad_boxes_does_not_end_the_reading() -> None:
    flat = {"boxes": np.array([[1.0, 1.0, 5.0, 1.0]]), "labels": np.array([1])}
    report = found(Raising([(image(seed), flat) for seed in range(1500)]))
    assert report.splits == {"all": 1499}


class AllRaising(Listed):
    """No sample can be read."""

    def __getitem__(self, place: int) -> Any:
        raise KeyError("lost")


def test_a_data_set_that_always_raises_is_left_and_that_is_told() -> None:
    report = found(AllRaising([0] * 5000))
    assert codes(report) == ["sample-unreadable"]
    assert report.notes == ["all was not read on after sample 1,000: 1,001 samples raised an error"]


def test_a_nan_in_a_later_chunk_than_the_whole_numbers_is_found() -> None:
    labels: list[Any] = [seed % 4 for seed in range(600)]
    labels[300] = float("nan")
    assert "non-finite-input" in codes(found(labelled(labels)))
