"""Weights in shards: all of them as one, and every shard that is missing, cut or of another save is named."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from holdfast.checkpoints.formats.hugging_face import open_index
from holdfast.checkpoints.formats.open import open_checkpoint

SHARDS = {
    "model-00001-of-00002.safetensors": {"a.weight": torch.ones(3, 4), "a.bias": torch.zeros(3)},
    "model-00002-of-00002.safetensors": {"b.weight": torch.full((2, 3), 2.0)},
}
INDEX = "model.safetensors.index.json"


def table() -> dict[str, Any]:
    size = sum(tensor.nbytes for tensors in SHARDS.values() for tensor in tensors.values())
    return {"metadata": {"total_size": size}, "weight_map": {name: file for file, tensors in SHARDS.items() for name in tensors}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, tensors in SHARDS.items():
        save_file(tensors, tmp_path / name, metadata={"format": "pt"})
    (tmp_path / INDEX).write_text(json.dumps(table()))
    return tmp_path


def change(folder: Path, **facts: Any) -> None:
    (folder / INDEX).write_text(json.dumps({**table(), **facts}))


def test_all_shards_are_one_checkpoint(folder: Path) -> None:
    contents = open_checkpoint(folder / INDEX)
    assert contents.state == "clean" and contents.format == "sharded safetensors" and not contents.notes
    assert set(contents.tree) == {"a.weight", "a.bias", "b.weight"} and len(contents.files) == 3
    info = contents.tree["b.weight"]
    storage = contents.storages[info.storage]
    assert storage.file.name == "model-00002-of-00002.safetensors" and info in contents.tensors
    whole = storage.file.read_bytes()
    assert whole[storage.offset : storage.offset + storage.size] == SHARDS[storage.file.name]["b.weight"].numpy().tobytes()


def test_a_folder_with_nothing_but_shards_and_index_is_a_checkpoint(folder: Path) -> None:
    contents = open_checkpoint(folder)
    assert contents.state == "clean" and set(contents.tree["model"]) == {"a.weight", "a.bias", "b.weight"}


def test_pickled_shards_work_the_same(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "pytorch_model-00001-of-00002.bin")
    torch.save({"b": torch.ones(4)}, tmp_path / "pytorch_model-00002-of-00002.bin")
    weights = {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 28}, "weight_map": weights}))
    contents = open_checkpoint(index)
    assert (
        contents.state == "clean"
        and contents.format == "sharded torch"
        and set(contents.tree) == {"a", "b"}
        and not contents.notes
    )
    assert open_checkpoint(tmp_path).state == "clean"


def test_a_missing_shard_is_named_with_its_tensors(folder: Path) -> None:
    (folder / "model-00001-of-00002.safetensors").unlink()
    contents = open_index(folder / INDEX)
    (trouble,) = contents.troubles
    assert contents.state == "torn" and trouble.where == "model-00001-of-00002.safetensors"
    assert "is missing, and with it 2 tensors" in trouble.text and "b.weight" in contents.tree


def test_a_cut_or_empty_shard_is_named(folder: Path) -> None:
    shard = folder / "model-00002-of-00002.safetensors"
    data = shard.read_bytes()
    for length in (0, 5, 30, len(data) - 1):
        shard.write_bytes(data[:length])
        contents = open_index(folder / INDEX)
        assert contents.state == "torn" and contents.troubles[0].text.startswith("model-00002-of-00002.safetensors: it is ")


def test_a_shard_of_another_save_is_told(folder: Path) -> None:
    save_file({"c.weight": torch.ones(2)}, folder / "model-00002-of-00002.safetensors")
    contents = open_index(folder / INDEX)
    assert (
        contents.state == "torn"
        and "does not hold 1 tensors that the index says are in it: b.weight" in contents.troubles[0].text
    )
    assert any("c.weight" in note for note in contents.notes)


def test_a_size_that_disagrees_does_not_matter(folder: Path) -> None:
    for stated in (1, 1.5, float("nan"), float("inf"), "many"):  # a tied weight is counted twice by some writers
        change(folder, metadata={"total_size": stated})
        assert open_index(folder / INDEX).state == "clean"


def test_an_index_never_leads_out_of_its_folder(folder: Path) -> None:
    for name in ("/etc/passwd", "../secret.safetensors", "..", "", "a\0b", "sub/../../x"):
        change(folder, weight_map={"a.weight": name})
        contents = open_index(folder / INDEX)
        assert contents.state == "unreadable" and "outside its folder" in contents.troubles[0].text


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 3}}', "\0" * 40, '{"weight_map": {"a"']
)
def test_a_damaged_index_is_told_and_never_raises(folder: Path, text: str) -> None:
    (folder / INDEX).write_text(text)
    assert open_index(folder / INDEX).state in ("torn", "unreadable") and open_checkpoint(folder).state in ("torn", "unreadable")


def test_shards_without_an_index_are_an_interrupted_save(folder: Path) -> None:
    (folder / INDEX).unlink()
    contents = open_checkpoint(folder)
    assert contents.state == "torn" and "2 of 2 shards and no index" in contents.troubles[0].text
    (folder / "model-00001-of-00002.safetensors").unlink()
    contents = open_checkpoint(folder)
    assert "1 of 2 shards and no index" in contents.troubles[0].text and "b.weight" in contents.tree["model"]


def test_an_index_cut_or_changed_at_random_is_never_clean_while_a_tensor_is_missing(folder: Path) -> None:
    chance = random.Random(0)
    whole = (folder / INDEX).read_bytes()
    for _ in range(250):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 2, 8))):
            at = chance.randrange(len(data) or 1)
            data[at : at + chance.choice((0, 1, 5))] = bytes(chance.choices(b'{}[]",:0123abc.', k=chance.choice((0, 1, 3))))
        if chance.random() < 0.3:
            del data[chance.randrange(len(data) + 1) :]
        (folder / INDEX).write_bytes(data)
        contents = open_index(folder / INDEX)
        if contents.state == "clean":
            named = json.loads(data)["weight_map"]
            assert set(named) <= set(contents.tree)
