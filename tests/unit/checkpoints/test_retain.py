"""What stays and what goes: nothing goes before a newer one was verified."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from every_case import every_case

from holdfast.checkpoints.manifest import Kept, kept_in, list_checkpoints
from holdfast.checkpoints.retain import best_of, retain, to_keep
from holdfast.checkpoints.safetensors import Tensors
from holdfast.checkpoints.write import mark_best, write_checkpoint

PARTS = {"weights": Tensors({"a": torch.arange(4.0)}), "training": {}}


def save(folder: Path, *steps: int, **facts: Any) -> list[Path]:
    return [write_checkpoint(folder, step, PARTS, **facts) for step in steps]


def steps_in(folder: Path) -> list[int]:
    return [kept.step for kept in kept_in(folder)]


def test_the_last_ones_and_the_best_stay(tmp_path: Path) -> None:
    paths = save(tmp_path, 1, 2, 3, 4, 5, 1_000_000)
    mark_best(paths[1], 0.9)
    assert retain(tmp_path, verified=paths[-1], keep_last=3) == [paths[0], paths[2]]
    assert steps_in(tmp_path) == [2, 4, 5, 1_000_000]


def test_one_of_every_fifth_epoch_stays_and_it_is_the_last_one_of_it(tmp_path: Path) -> None:
    for epoch in range(12):
        for part in range(2):
            paths = save(tmp_path, 10 * epoch + part, epoch=epoch)
    retain(tmp_path, verified=paths[-1], keep_last=2, every_epochs=5)
    assert steps_in(tmp_path) == [51, 101, 110, 111]


def test_nothing_newer_than_the_verified_one_goes_and_nothing_if_that_is_not_there(tmp_path: Path) -> None:
    paths = save(tmp_path, 1, 2, 3, 4, 5)
    assert retain(tmp_path, verified=tmp_path / "step-000009", keep_last=1) == []
    assert retain(tmp_path, verified=paths[2], keep_last=1) == paths[:2]
    assert steps_in(tmp_path) == [3, 4, 5]


def test_a_training_that_was_set_back_does_not_lose_what_it_saves_now(tmp_path: Path) -> None:
    paths = save(tmp_path, 100, 200, 300, 110, 120)
    retain(tmp_path, verified=paths[-1], keep_last=3)
    assert steps_in(tmp_path) == [300, 110, 120]


def test_of_those_that_are_spread_out_one_is_from_long_before(tmp_path: Path) -> None:
    for step in range(10, 330, 10):
        (path,) = save(tmp_path, step)
        retain(tmp_path, verified=path, keep_last=3, spread=True)
        assert steps_in(tmp_path) == sorted({10, max(10, step - 10), step}), "a fault seen late has a clean ancestor"
    for step in (60, 70):  # rolled back to step 50
        (path,) = save(tmp_path, step)
        retain(tmp_path, verified=path, keep_last=3, spread=True)
    assert steps_in(tmp_path) == [10, 60, 70], "what was undone goes first"


def test_a_torn_one_does_not_count_as_one_of_the_last(tmp_path: Path) -> None:
    paths = save(tmp_path, 1, 2, 3, 4)
    (paths[2] / "weights.safetensors").unlink()
    retain(tmp_path, verified=paths[3], keep_last=2)
    assert steps_in(tmp_path) == [2, 4]


def test_who_saves_often_does_not_push_out_what_others_saved(tmp_path: Path) -> None:
    theirs = save(tmp_path, 1, 2, made_by="store")
    ours = save(tmp_path, 3, 4, 5, 6, made_by="guard")
    assert retain(tmp_path, verified=ours[-1], keep_last=2, made_by="guard") == ours[:2]
    assert list_checkpoints(tmp_path) == [*theirs, *ours[2:]]


def test_what_cannot_be_removed_is_an_error_and_the_rest_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = save(tmp_path, 1, 2, 3)

    def refuse(*_: object) -> None:
        raise PermissionError("not today")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(PermissionError):
        retain(tmp_path, verified=paths[-1], keep_last=1)
    assert list_checkpoints(tmp_path) == paths


@every_case(("lower", "expected"), [(True, 3), (False, 2)])
def test_the_best_is_by_value_and_never_a_nan(tmp_path: Path, lower: bool, expected: int) -> None:
    for step, value in ((1, 0.5), (2, 0.9), (3, 0.1), (4, 0.1), (5, math.nan), (6, -math.inf)):
        save(tmp_path, step, metrics={"score": value if math.isfinite(value) else None})
    save(tmp_path, 7, metrics={"another": 5.0})
    best = best_of(kept_in(tmp_path), "score", lower_is_better=lower)
    assert best is not None and best.step == expected
    assert best_of(kept_in(tmp_path), "nothing", lower_is_better=True) is None


def test_deciding_needs_no_disk() -> None:
    kept = [
        Kept(Path(f"step-{step:06d}"), {"step": step, "number": step, "epoch": step // 2, "files": {}}) for step in range(1, 40)
    ]
    assert [one.step for one in to_keep(kept, keep_last=1, every_epochs=None)] == [39]
    assert sorted({one.step for one in to_keep(kept, keep_last=2, every_epochs=5)}) == [11, 21, 31, 38, 39]
