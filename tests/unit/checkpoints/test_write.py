"""Checkpoints are written whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from every_case import every_case

from holdfast.checkpoints import spare, write
from holdfast.checkpoints.manifest import list_checkpoints, read_manifest
from holdfast.checkpoints.read import read_checkpoint
from holdfast.checkpoints.safetensors import Tensors
from holdfast.checkpoints.write import best_checkpoint, mark_best, write_checkpoint
from holdfast.errors import DiskFull, StorageError

PARTS = {"weights": Tensors({"a": torch.arange(10.0)}), "training": {"lr": 0.1, "betas": (0.9, 0.99), "m": [torch.ones(3)]}}


def full(*_: object, **__: object) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "new", 123, PARTS, rank=0)
    assert path.name == "step-000123" and names_in(path) == ["manifest.json", "training.pt", "weights.safetensors"]
    parts = read_checkpoint(path)
    assert torch.equal(parts["weights"]["a"], torch.arange(10.0))
    assert parts["training"]["betas"] == (0.9, 0.99) and torch.equal(parts["training"]["m"][0], torch.ones(3))


def test_a_failure_of_any_call_to_the_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call fails, in the next try the second, and so on, until there are no more calls."""
    old = write_checkpoint(tmp_path, 5, PARTS)
    real = {(os, "fsync"): os.fsync, (Path, "rename"): Path.rename, (Path, "mkdir"): Path.mkdir, (Path, "open"): Path.open}
    count, failures, reached = 0, 0, True
    while reached:
        left = [count]

        def failing(original: Any, left: list[int]) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                left[0] -= 1
                return full() if left[0] == -1 else original(*args, **kwargs)

            return call

        for (owner, name), original in real.items():
            monkeypatch.setattr(owner, name, failing(original, left))
        try:
            write_checkpoint(tmp_path, 5, PARTS)
        except StorageError as error:
            assert isinstance(error, DiskFull) and "No space left" in error.problem
            failures += 1
        finally:
            monkeypatch.undo()
        assert names_in(tmp_path) in (["step-000005"], ["step-000005", "step-000005-2"]), "nothing half made is left"
        for path in list_checkpoints(tmp_path):
            assert read_checkpoint(path)["training"]["lr"] == 0.1
        shutil.rmtree(tmp_path / "step-000005-2", ignore_errors=True)
        reached, count = left[0] < 0, count + 1
    assert failures >= 9, "every file and both folders are forced to the disk"
    assert old.exists()


def test_the_manifest_is_written_last_and_the_name_comes_after_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def note_fsync(descriptor: int) -> None:
        seen.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def note_rename(path: Path, to: Path) -> Path:
        seen.append(f"named {to.name}")
        return rename(path, to)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "rename", note_rename)
    write_checkpoint(tmp_path, 7, PARTS)
    assert seen[:3] == ["weights.safetensors", "training.pt", "manifest.json"]
    assert seen[3].startswith(".new-step-000007") and seen[4:] == ["named step-000007", tmp_path.name]


def test_the_same_step_again_gets_a_name_of_its_own_and_the_old_one_stays(tmp_path: Path) -> None:
    first = write_checkpoint(tmp_path, 5, PARTS)
    second = write_checkpoint(tmp_path, 5, {"training": {"lr": 0.2}})
    third = write_checkpoint(tmp_path, 5, {"training": {"lr": 0.3}})
    assert [path.name for path in (first, second, third)] == ["step-000005", "step-000005-2", "step-000005-3"]
    assert list_checkpoints(tmp_path) == [first, second, third]
    assert [read_checkpoint(path)["training"]["lr"] for path in (first, second, third)] == [0.1, 0.2, 0.3]


def test_a_name_that_another_process_takes_meanwhile_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def slow(path: Path, to: Path) -> Path:
        if to.name == "step-000005":
            to.mkdir()
            (to / "theirs").touch()
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", slow)
    assert write_checkpoint(tmp_path, 5, PARTS).name == "step-000005-2"
    assert (tmp_path / "step-000005" / "theirs").exists()


def test_a_disk_that_is_too_full_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match="are free"):
        write_checkpoint(tmp_path, 5, PARTS, size=1 << 60)
    assert names_in(tmp_path) == []


@every_case("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_full_disk_is_told_from_other_trouble(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageError) as caught:
        write_checkpoint(tmp_path, 5, PARTS)
    assert isinstance(caught.value, DiskFull) == (number in (errno.ENOSPC, errno.EDQUOT))
    assert os.strerror(number) in caught.value.problem


def test_the_disk_is_full_in_the_middle_of_torchs_own_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write._Watched, "write", full)
    with pytest.raises(DiskFull):
        write_checkpoint(tmp_path, 5, {"training": {"m": torch.ones(10)}})
    assert names_in(tmp_path) == []


def test_a_large_tensor_is_written_in_pieces_and_forced_to_the_disk_as_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "_FORCED", 8 << 20)
    forced: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (forced.append(descriptor), fsync(descriptor)))
    moved: list[int] = []
    big = torch.ones(8 << 20)
    path = write_checkpoint(
        tmp_path, 5, {"weights": Tensors({"big": big}), "training": {"big": big}}, moved=lambda: moved.append(1)
    )
    assert len(moved) >= 16 and len(forced) > 8
    assert torch.equal(read_checkpoint(path)["training"]["big"], big)


def test_the_best_is_named_in_one_move_and_forgotten_if_it_is_gone(tmp_path: Path) -> None:
    assert best_checkpoint(tmp_path) is None
    path = write_checkpoint(tmp_path, 5, PARTS)
    mark_best(path, 0.9, "accuracy")
    assert best_checkpoint(tmp_path) == path
    assert json.loads((tmp_path / "best.json").read_text()) == {"checkpoint": "step-000005", "metric": "accuracy", "value": 0.9}
    assert names_in(tmp_path) == ["best.json", "step-000005"]
    (path / "training.pt").unlink()
    assert best_checkpoint(tmp_path) is None


# Spare folders


def test_what_was_left_behind_is_removed_before_there_is_no_room_for_a_new_one(tmp_path: Path) -> None:
    """A job that is killed while it saves, and started again and again, must not fill the disk."""
    dead = leave_spare(tmp_path, pid=1 << 22)
    with pytest.raises(DiskFull):
        write_checkpoint(tmp_path, 5, PARTS, size=1 << 60)
    assert not dead.exists()


def leave_spare(folder: Path, *, host: str | None = None, pid: int | None = None) -> Path:
    name = spare.spare_name("new", "step-000009")
    begin, own_host, own_pid, started, count = name.split("~")
    path = folder / "~".join([begin, host or own_host, str(pid or own_pid), "1" if pid else started, count])
    path.mkdir()
    (path / "weights.safetensors").write_bytes(b"half")
    return path


def test_what_a_dead_process_left_behind_is_removed_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    kept = write_checkpoint(tmp_path, 5, PARTS)
    living, elsewhere = leave_spare(tmp_path), leave_spare(tmp_path, host="another-machine", pid=1)
    dead = leave_spare(tmp_path, pid=1 << 22)
    used_again = leave_spare(tmp_path, pid=os.getppid())  # that number lives, but began at another time
    (tmp_path / ".new-notes").mkdir()
    assert sorted(spare.clear_abandoned(tmp_path)) == sorted([dead, used_again])
    assert living.exists() and elsewhere.exists() and kept.exists() and (tmp_path / ".new-notes").exists()


def test_what_another_machine_left_behind_is_removed_after_a_week(tmp_path: Path) -> None:
    path = leave_spare(tmp_path, host="another-machine", pid=1)
    for entry in (path / "weights.safetensors", path):
        os.utime(entry, (1e9, 1e9))
    assert spare.clear_abandoned(tmp_path) == [path]


def test_a_checkpoint_that_is_being_removed_is_out_of_sight_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_checkpoint(tmp_path, 5, PARTS)
    seen: list[list[Path]] = []
    monkeypatch.setattr(spare.shutil, "rmtree", lambda *_, **__: seen.append(list_checkpoints(tmp_path)))
    spare.remove(path)
    assert seen == [[]]
    (gone,) = tmp_path.iterdir()
    assert read_manifest(gone) is None, "half removed, it must not look whole"
