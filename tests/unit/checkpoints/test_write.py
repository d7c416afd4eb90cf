"""Checkpoints are written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from holdfast.checkpoints import write
from holdfast.checkpoints.write import (
    best_checkpoint,
    list_checkpoints,
    mark_best,
    read_checkpoint,
    read_manifest,
    retain,
    write_checkpoint,
)
from holdfast.errors import StorageError

PARTS = {"weights": {"a": torch.arange(10.0)}, "training": {"lr": 0.1, "betas": (0.9, 0.99)}}


def test_what_was_written_is_read_back_without_running_anything(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "new", 123, PARTS, rank=0)
    assert path.name == "step-000123"
    parts = read_checkpoint(path)
    assert torch.equal(parts["weights"]["a"], torch.arange(10.0)) and parts["training"] == PARTS["training"]


def test_the_manifest_holds_sizes_and_checksums(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 5, PARTS, rank=2)
    manifest = read_manifest(path)
    assert manifest is not None and manifest["step"] == 5 and manifest["rank"] == 2
    for name, facts in manifest["files"].items():
        assert facts == {"size": (path / name).stat().st_size, "sha256": write.digest_of(path / name)}


@pytest.mark.parametrize("moment", ["_write_part", "_write_text", "_move"])
def test_a_failure_at_any_moment_leaves_what_was_there(tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path, 5, PARTS)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, moment, full)
    for step in (5, 6):
        with pytest.raises(StorageError, match="No space left"):
            write_checkpoint(tmp_path, step, PARTS)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["step-000005"]
    assert read_checkpoint(tmp_path / "step-000005")["training"] == PARTS["training"]


def test_a_rename_that_fails_gives_the_old_one_its_name_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path, 5, PARTS)
    replace = Path.replace

    def stubborn(self: Path, target: Path) -> Path:
        if self.name.startswith(".step"):
            raise OSError("not today")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", stubborn)
    with pytest.raises(StorageError):
        write_checkpoint(tmp_path, 5, {"other": 1})
    assert read_checkpoint(tmp_path / "step-000005").keys() == PARTS.keys()


def test_the_same_step_again_replaces_the_old_one(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 5, PARTS)
    write_checkpoint(tmp_path, 5, {"weights": {"a": torch.zeros(1)}})
    assert [path.name for path in tmp_path.iterdir()] == ["step-000005"]
    assert read_checkpoint(tmp_path / "step-000005")["weights"]["a"].tolist() == [0.0]


def test_a_disk_that_is_too_full_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="GB are free"):
        write_checkpoint(tmp_path, 5, PARTS, size=1 << 60)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["no manifest", "half a manifest", "a short file", "a file gone"])
def test_a_torn_checkpoint_is_none(tmp_path: Path, damage: str) -> None:
    path = write_checkpoint(tmp_path, 5, PARTS)
    manifest, weights = path / "manifest.json", path / "weights.pt"
    if damage == "no manifest":
        manifest.unlink()
    elif damage == "half a manifest":
        manifest.write_text(manifest.read_text()[:40])
    elif damage == "a short file":
        weights.write_bytes(weights.read_bytes()[:-1])
    else:
        weights.unlink()
    assert read_manifest(path) is None and list_checkpoints(tmp_path) == []
    with pytest.raises(StorageError, match="not a whole checkpoint"):
        read_checkpoint(path)


def test_a_changed_bit_is_seen(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 5, PARTS)
    data = bytearray((path / "weights.pt").read_bytes())
    data[len(data) // 2] ^= 1
    (path / "weights.pt").write_bytes(bytes(data))
    with pytest.raises(StorageError, match="does not match"):
        read_checkpoint(path)


def test_the_newest_and_the_best_stay(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5, 1_000_000):
        path = write_checkpoint(tmp_path, step, PARTS)
        if step == 2:
            mark_best(path, 0.9)
    assert [path.name for path in retain(tmp_path, keep=3)] == ["step-000001", "step-000003"]
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-000002", "step-000004", "step-000005", "step-1000000"]
    assert best_checkpoint(tmp_path) == tmp_path / "step-000002"
    assert json.loads((tmp_path / "best.json").read_text())["value"] == 0.9
