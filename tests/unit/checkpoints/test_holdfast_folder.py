"""Holdfast's own folders: whole with their manifest, and torn in any other case."""

from __future__ import annotations

import json
import random
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoints.contents import Contents
from holdfast.checkpoints.formats.find import find_checkpoints
from holdfast.checkpoints.formats.holdfast_folder import open_holdfast
from holdfast.checkpoints.formats.open import open_checkpoint
from holdfast.checkpoints.manifest import list_checkpoints
from holdfast.checkpoints.safetensors import Tensors
from holdfast.checkpoints.write import write_checkpoint

WEIGHTS = {"layer.weight": torch.arange(12.0).reshape(3, 4), "layer.bias": torch.zeros(3)}
TRAINING = {"optimizers": [{"state": {0: {"exp_avg": torch.ones(3, 4)}}}], "randomness": {"python": (3, (1, 2), None)}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    parts = {
        "weights": Tensors(WEIGHTS, {"head.weight": "layer.weight"}),
        "weights-1": Tensors({"second": torch.ones(2)}),
        "averages": Tensors({"layer.bias": torch.ones(3)}),
        "training": TRAINING,
    }
    return write_checkpoint(tmp_path / "checkpoints", 123, parts, epoch=4, metrics={"loss": 0.5}, settings={"lr": 0.1})


def change(folder: Path, **facts: Any) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def words(contents: Contents) -> str:
    return "\n".join(trouble.text for trouble in contents.troubles)


def test_all_parts_are_there_under_the_names_of_the_model(folder: Path) -> None:
    contents = open_checkpoint(folder)
    assert contents.state == "clean" and contents.producer == contents.format == "holdfast" and not contents.notes
    assert set(contents.tree) == {"model", "model-1", "averages", "training", "manifest"}
    weight = contents.tree["model"]["layer.weight"]
    assert weight.shape == (3, 4) and weight.name == "model.layer.weight" and weight in contents.tensors
    assert contents.tree["model"]["__metadata__"]["head.weight"] == "layer.weight"
    assert contents.tree["training"]["optimizers"][0]["state"][0]["exp_avg"].name == "training.optimizers.0.state.0.exp_avg"
    assert contents.tree["manifest"]["step"] == 123 and contents.tree["manifest"]["metrics"] == {"loss": 0.5}
    assert contents.versions["torch"] == torch.__version__ and contents.versions["format"] == "2"
    assert contents.size == sum(path.stat().st_size for path in folder.iterdir())


def test_each_tensor_has_the_checksum_of_the_manifest(folder: Path) -> None:
    contents = open_checkpoint(folder)
    for storage in contents.storages:
        data = storage.file.read_bytes()[storage.offset : storage.offset + storage.size]
        assert storage.crc32 == zlib.crc32(data), storage


def test_another_format_of_the_manifest_is_told_with_what_to_do(folder: Path) -> None:
    change(folder, format=1)
    contents = open_checkpoint(folder)
    assert contents.state == "unreadable" and "different version of Holdfast" in words(contents)
    assert list_checkpoints(folder.parent) == [], "no training resumes from what it cannot read"


def test_without_a_manifest_it_was_interrupted(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    contents = open_checkpoint(folder)
    assert contents.state == "torn" and "interrupted before it was complete" in words(contents)
    assert contents.tree["model"]["layer.weight"].shape == (3, 4)  # what is there is still shown
    (folder / "weights.safetensors").unlink()
    assert open_checkpoint(folder).state == "torn"


def test_folders_of_others_that_are_named_alike_are_not_taken_for_ours(tmp_path: Path) -> None:
    for name, files in (
        ("step-1000", ("weights.pt",)),
        ("export", ("weights.pt", "manifest.json")),
        ("step-000100", ("weights.pt",)),
    ):
        (tmp_path / name).mkdir()
        for file in files:
            torch.save({"a": torch.ones(2)}, tmp_path / name / file)
        assert open_checkpoint(tmp_path / name).format != "holdfast"
        assert find_checkpoints(tmp_path / name) == [tmp_path / name / "weights.pt"]


def test_a_copy_under_another_name_is_still_ours(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "the good one")
    assert open_checkpoint(tmp_path / "the good one").format == "holdfast"


def test_a_spare_folder_is_not_listed_and_is_torn(folder: Path) -> None:
    spare = folder.with_name(".new-step-000124~host~1~1~1")
    spare.mkdir()
    shutil.copy(folder / "weights.safetensors", spare)
    assert find_checkpoints(folder.parent) == [folder]
    contents = open_checkpoint(spare)
    assert contents.state == "torn" and any("not finished" in note for note in contents.notes)
    gone = spare.rename(spare.with_name(".gone-step-000124~host~1~1~1"))
    assert "it was being removed" in words(open_checkpoint(gone))


@pytest.mark.parametrize("name", ["weights.safetensors", "averages.safetensors", "training.pt"])
def test_a_part_that_is_missing_shorter_or_longer_is_torn(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    for changed in (b"", data[:10], data[:-1], data + b"\0"):
        (folder / name).write_bytes(changed)
        contents = open_checkpoint(folder)
        assert contents.state in ("torn", "unreadable") and name in {trouble.where for trouble in contents.troubles}
    (folder / name).unlink()
    contents = open_checkpoint(folder)
    assert contents.state == "torn" and f"{name} is missing, and its manifest names it" in words(contents)


def test_a_file_of_the_same_length_with_another_header_does_not_match(folder: Path) -> None:
    path = folder / "weights.safetensors"
    path.write_bytes(path.read_bytes().replace(b"layer.bias", b"layer.bibs"))
    contents = open_checkpoint(folder)
    assert (
        contents.state == "torn" and "does not match its manifest" in words(contents) and "holds other tensors" in words(contents)
    )


def test_the_manifest_of_a_newer_holdfast_is_not_guessed_at(folder: Path) -> None:
    for number in (3, "2", 2.5, -1):
        change(folder, format=number)
        contents = open_checkpoint(folder)
        assert contents.state == "unreadable" and "different version of Holdfast" in words(contents)


def test_a_manifest_never_leads_out_of_its_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.pt").write_bytes(b"x")
    for name in ("/etc/passwd.pt", "../../secret.pt", "a/../../../secret.pt"):
        change(folder, files={name: {"size": 1, "crc32": "00000000", "tensors": {}}})
        contents = open_checkpoint(folder)
        assert "outside its folder" in words(contents) and {info.path.name for info in contents.files} == {"manifest.json"}


def test_the_manifest_tells_what_was_not_finite(tmp_path: Path) -> None:
    bad = torch.tensor([1.0, float("nan")])
    folder = write_checkpoint(tmp_path, 1, {"weights": Tensors({"a": bad}), "training": {}})
    assert any("non-finite values: a" in note for note in open_checkpoint(folder).notes)


def test_sharded_states_stand_under_the_names_of_the_model(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    folder = write_checkpoint(tmp_path, 5, {"training": {"sharded": True}})
    state = {
        "model.layer.weight": torch.ones(2, 2),
        "optimizer.layer.weight.exp_avg": torch.zeros(2, 2),
        "average.a": torch.ones(1),
    }
    dcp.save(state, checkpoint_id=folder / "shards")
    named = {
        f"shards/{path.name}": {"size": path.stat().st_size, "crc32": "", "tensors": {}} for path in (folder / "shards").iterdir()
    }
    change(folder, files={**json.loads((folder / "manifest.json").read_text())["files"], **named})
    contents = open_checkpoint(folder)
    assert contents.state == "clean" and contents.tree["model"]["layer.weight"].name == "model.layer.weight"
    assert set(contents.tree) == {"model", "optimizer", "averages", "training", "manifest"} and find_checkpoints(tmp_path) == [
        folder
    ]
    (folder / "shards/__0_0.distcp").write_bytes((folder / "shards/__0_0.distcp").read_bytes()[:-5])
    contents = open_checkpoint(folder)
    assert contents.state == "torn" and "shards: __0_0.distcp is truncated" in words(contents)


def test_a_manifest_cut_at_any_byte_is_torn(folder: Path) -> None:
    path = folder / "manifest.json"
    whole = path.read_bytes()
    for length in range(0, len(whole.rstrip()), 7):
        path.write_bytes(whole[:length])
        contents = open_holdfast(folder)
        assert contents.state == "torn" and "manifest is damaged" in words(contents), length


def test_a_manifest_changed_at_random_never_raises_and_is_clean_only_with_all_files_whole(folder: Path) -> None:
    chance = random.Random(0)
    path = folder / "manifest.json"
    whole = path.read_bytes()
    cut = (folder / "weights.safetensors").read_bytes()
    for number in range(160):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 3, 9))):
            at = chance.randrange(len(data))
            data[at : at + chance.choice((0, 1, 6))] = bytes(
                chance.choices(b'{}[]",:0123nulltrue.e\xff\\u', k=chance.choice((0, 1, 3)))
            )
        path.write_bytes(data)
        (folder / "weights.safetensors").write_bytes(cut[:-3] if number % 2 else cut)
        contents = open_holdfast(folder)
        if number % 2 and any(info.path.name == "weights.safetensors" for info in contents.files):
            assert contents.state != "clean"
        json.dumps([contents.notes, words(contents)], ensure_ascii=False).encode()  # what is said can be printed
