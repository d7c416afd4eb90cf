"""The store: what fails is told, and never raised into the loop."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_loop import Loop

from holdfast.errors import UsageError
from holdfast.state import checkpoint_parts, saver
from holdfast.state.store import CheckpointStore


def refuse(number: int) -> Callable[..., Any]:
    def call(*_: object, **__: object) -> Any:
        raise OSError(number, os.strerror(number))

    return call


def test_a_full_disk_is_a_finding_and_saving_goes_on_when_there_is_room(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    store.save(1, **loop.parts, wait=True)
    with monkeypatch.context() as full, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        full.setattr(os, "fsync", refuse(errno.ENOSPC))
        for step in (2, 3, 4):
            store.save(step, **loop.train(1).parts)
        store.wait()
    assert [str(one.message)[:9] for one in told] == ["holdfast:"], "said once"
    assert [row["code"] for row in store.troubles] == ["disk-full"] * 3
    assert [kept.step for kept in store.list()] == [1] and [path.name for path in tmp_path.iterdir()] == ["step-000001"]
    assert store.save(5, **loop.parts, wait=True) is not None and [kept.step for kept in store.list()] == [5]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EIO, errno.ESTALE])
def test_other_trouble_has_a_code_of_its_own(loop: Loop, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path)
    monkeypatch.setattr(Path, "mkdir", refuse(number))
    with pytest.warns(UserWarning, match=os.strerror(number)):
        assert store.save(1, **loop.parts, wait=True) is None
    assert [row["code"] for row in store.troubles] == ["checkpoint-not-saved"]


@pytest.mark.parametrize(
    "wrong", [{"model": {}}, {"model": None}, {"optimizer": 3}, {"loader": object()}, {"scheduler": "cosine"}]
)
def test_a_wrong_argument_after_eight_hours_does_not_end_the_training(loop: Loop, tmp_path: Path, wrong: dict[str, Any]) -> None:
    store = CheckpointStore(tmp_path)
    with pytest.warns(UserWarning, match="holdfast:"):
        assert store.save(1, **{**loop.parts, **wrong}) is None
    assert store.troubles[0]["code"] == "checkpoint-not-saved"


def test_a_wrong_setting_of_the_store_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="keep_last"):
        CheckpointStore(tmp_path, keep_last=0)


def test_what_was_not_read_back_whole_is_no_checkpoint_and_costs_no_older_one(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that says it has written and gives other bytes back."""
    store = CheckpointStore(tmp_path, keep_last=1)
    store.save(1, **loop.parts, wait=True)
    write = checkpoint_parts.write_checkpoint

    def forgetful(*args: Any, **kwargs: Any) -> Path:
        path = write(*args, **kwargs)
        data = bytearray((path / "weights.safetensors").read_bytes())
        data[-3] ^= 1
        (path / "weights.safetensors").write_bytes(bytes(data))
        return path

    monkeypatch.setattr(checkpoint_parts, "write_checkpoint", forgetful)
    with pytest.warns(UserWarning, match="does not match"):
        assert store.save(2, **loop.parts, wait=True) is None
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


def test_old_ones_that_cannot_be_removed_cost_nothing(loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    store.save(1, **loop.parts, wait=True)
    monkeypatch.setattr(saver, "retain", refuse(errno.EACCES))
    with pytest.warns(UserWarning, match="Permission denied"):
        assert store.save(2, **loop.parts, wait=True) is not None
    assert [row["code"] for row in store.troubles] == ["holdfast-degraded"] and len(store.list()) == 2
