"""The manifest says what the files must be; which checkpoint is the newest does not depend on clocks and steps."""

from __future__ import annotations

import json
import math
import platform
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from every_case import every_case

import holdfast
from holdfast.checkpoints.manifest import Names, kept_in, list_checkpoints, read_manifest, torn_in
from holdfast.checkpoints.read import read_checkpoint, verify_checkpoint
from holdfast.checkpoints.safetensors import Tensors
from holdfast.checkpoints.write import write_checkpoint
from holdfast.errors import StorageError

WEIGHTS = Tensors({"a": torch.arange(10.0), "mask": torch.tensor([0.0, -math.inf])}, {"b": "a"})
PARTS = {
    "weights": WEIGHTS,
    "training": {"optimizers": [{"state": {0: {"exp_avg": torch.ones(2)}}}], "scale": torch.tensor(math.nan)},
}


def test_the_manifest_holds_sizes_checksums_and_finiteness(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 5, PARTS, rank=2, epoch=3, metrics={"loss": 0.5}, settings={"lr": 0.1}, run="a")
    manifest = json.loads((path / "manifest.json").read_text())
    assert {name: manifest[name] for name in ("format", "step", "epoch", "rank", "world_size", "run", "number")} == {
        "format": 2, "step": 5, "epoch": 3, "rank": 2, "world_size": 1, "run": "a", "number": 1,
    }  # fmt: skip
    assert manifest["metrics"] == {"loss": 0.5} and manifest["settings"] == {"lr": 0.1}
    assert manifest["versions"] == {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "holdfast": holdfast.__version__,
    }
    weights, training = (path / "weights.safetensors").read_bytes(), (path / "training.pt").read_bytes()
    assert manifest["files"]["training.pt"]["crc32"] == f"{zlib.crc32(training):08x}"
    assert manifest["files"]["training.pt"]["size"] == len(training)
    assert manifest["files"]["training.pt"]["tensors"] == {
        "optimizers.0.state.0.exp_avg": {"non_finite": 0},
        "scale": {"non_finite": 1},
    }
    about = manifest["files"]["weights.safetensors"]
    assert about["size"] == len(weights) and about["tensors"].keys() == {"a", "mask"}
    assert about["tensors"]["a"] == {"crc32": f"{zlib.crc32(torch.arange(10.0).numpy()):08x}", "non_finite": 0}
    assert about["tensors"]["mask"]["non_finite"] == 1


@every_case("damage", ["no manifest", "half a manifest", "a short file", "a file gone", "leads outside", "another kind"])
def test_what_is_not_whole_is_none(tmp_path: Path, damage: str) -> None:
    path = write_checkpoint(tmp_path, 5, PARTS)
    manifest, weights = path / "manifest.json", path / "weights.safetensors"
    if damage == "no manifest":
        manifest.unlink()
    elif damage == "half a manifest":
        manifest.write_text(manifest.read_text()[:40])
    elif damage == "a short file":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "a file gone":
        weights.unlink()
    elif damage == "leads outside":
        (tmp_path / "other").write_bytes(b"")
        manifest.write_text(json.dumps({"format": 2, "step": 5, "files": {"../other": {"size": 0}}}))
    else:
        manifest.write_text("[1, 2]")
    assert read_manifest(path) is None and list_checkpoints(tmp_path) == []
    assert torn_in(tmp_path) == [(5, path)]
    with pytest.raises(StorageError, match="not a complete checkpoint"):
        read_checkpoint(path)


def test_other_peoples_folders_are_none_of_ours(tmp_path: Path) -> None:
    for name in ("step-100", "step-000200", "step-abc", "checkpoint-5"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__0_0.distcp").touch()
    assert list_checkpoints(tmp_path) == [] and torn_in(tmp_path) == []


@every_case("file", ["weights.safetensors", "training.pt"])
def test_a_changed_bit_is_seen_wherever_it_is(tmp_path: Path, file: str) -> None:
    path = write_checkpoint(tmp_path, 5, PARTS)
    whole = (path / file).read_bytes()
    for at in range(0, len(whole), 7):
        (path / file).write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(StorageError, match=r"does not match|cannot be read"):
            verify_checkpoint(path)
    (path / file).write_bytes(whole)
    assert verify_checkpoint(path, from_disk=True)["step"] == 5


def test_the_newest_is_the_one_saved_last_though_its_step_is_lower_and_the_clock_went_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a training was set back from step 300 to 100, the checkpoints that it left behind are not the newest ones."""
    for step, now in ((100, 1000.0), (200, 2000.0), (300, 3000.0), (150, 500.0)):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        write_checkpoint(tmp_path, step, {"training": {}})
    assert [kept.step for kept in kept_in(tmp_path)] == [100, 200, 300, 150]


def test_names_are_foretold(tmp_path: Path) -> None:
    names = Names(tmp_path / "not" / "there")
    assert names.foretell() == (1, tmp_path / "not" / "there" / "step-000001")
    write_checkpoint(tmp_path, 1_000_000, {"training": {}})
    names = Names(tmp_path)
    assert names.foretell() == (1_000_001, tmp_path / "step-1000001")
    assert names.foretell(1_000_000)[1] == tmp_path / "step-1000000-2"
