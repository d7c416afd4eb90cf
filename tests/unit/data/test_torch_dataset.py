"""A data set of the user's own code: faults in its samples are found, and its errors are told, not raised."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.data.validate import Report, Settings, validate
from holdfast.errors import UsageError

CODE = """
import numpy as np

class Set:
    def __init__(self, seed, rows=80):
        chance = np.random.default_rng(seed)
        self.images = chance.normal(size=(rows, 3, 8, 8)).astype(np.float32)
        self.labels = chance.permutation(np.arange(rows) % 4)
    def __len__(self):
        return len(self.labels)
    def __getitem__(self, place):
        return self.images[place], int(self.labels[place])

class Faulty(Set):
    def __getitem__(self, place):
        if place == 7:
            raise KeyError("lost")
        return super().__getitem__(place)

class Detection(Set):
    def __getitem__(self, place):
        boxes = [[1.0, 1.0, 5.0, 6.0], [2.0, 2.0, 7.0, 7.0 if place != 9 else 2.0]]
        return self.images[place], {"boxes": np.array(boxes), "labels": np.array([1, 2])}

def sound():
    return Set(0), Set(1)

def with_nan():
    train, val = sound()
    train.images[5, 0, 2, 2] = np.nan
    return train, val

def leaking():
    train, val = sound()
    val.images[3], val.labels[3] = train.images[11], train.labels[11]
    return {"train": train, "val": val}

def unnormalised():
    train, val = sound()
    val.images *= 255
    return train, val

def raising():
    return Faulty(0)

def boxes():
    return Detection(0)

def broken():
    raise RuntimeError("no disk")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_sets.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    sys.modules.pop("own_sets", None)
    return "own_sets"


def found(module: str, name: str) -> Report:
    return validate(f"{module}:{name}", Settings())


def test_a_sound_data_set_is_not_accused_of_anything(module: str) -> None:
    report = found(module, "sound")
    assert report.problems == [] and report.splits == {"train": 80, "val": 80} and len(report.classes) == 4


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("with_nan", "non-finite-input"),
        ("leaking", "split-leak"),
        ("unnormalised", "preprocessing-mismatch"),
        ("raising", "sample-unreadable"),
        ("boxes", "box-zero-area"),
    ],
)
def test_a_fault_is_found_and_nothing_else(module: str, name: str, code: str) -> None:
    assert [problem.code for problem in found(module, name).problems] == [code]


def test_a_factory_that_raises_is_told_in_words(module: str) -> None:
    with pytest.raises(UsageError, match="no disk"):
        found(module, "broken")
