"""Files of torch.save in the older form, and bare pickles: cut, damaged, with numbers that do not fit."""

from __future__ import annotations

import io
import os
import pickle
import random
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from every_case import every_case
from torch import nn

from holdfast.checkpoints.contents import Contents, Opaque
from holdfast.checkpoints.formats.legacy_file import open_legacy

TREE = {"model": {"w": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(3)}, "epoch": 3}
NAMES = ["model.w", "model.b"]
MAGIC = 0x1950A86A20F9469CFC6C


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return saved(tmp_path / "a.pt", TREE)


def saved(path: Path, tree: Any) -> Path:
    torch.save(tree, path, _use_new_zipfile_serialization=False)
    return path


def aged(path: Path) -> Path:
    then = time.time() - 3600
    os.utime(path, (then, then))
    return path


def words(contents: Contents) -> str:
    return " ".join(trouble.text for trouble in contents.troubles)


def test_a_checkpoint_of_the_older_form_is_read(path: Path) -> None:
    contents = open_legacy(path)
    assert contents.state == "clean" and contents.format == "torch legacy" and contents.notes == []
    assert [info.name for info in contents.tensors] == NAMES and contents.tree["epoch"] == 3
    data = path.read_bytes()
    for info in contents.tensors:
        storage = contents.storages[info.storage]
        count = struct.unpack("<q", data[storage.offset - 8 : storage.offset])[0]
        assert count * 4 == storage.size and storage.crc32 is None


def test_a_file_cut_at_any_byte_is_never_called_clean(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    cut = tmp_path / "cut.pt"
    for length in range(len(data)):
        cut.write_bytes(data[:length])
        contents = open_legacy(aged(cut))
        assert contents.state == "torn", (length, contents.troubles)
        assert contents.refused == [] and all(storage.offset + storage.size <= length for storage in contents.storages)
        if length > data.index(b"epoch"):
            assert [info.name for info in contents.tensors] == NAMES


@every_case("protocol", range(6))
def test_a_bare_pickle_cut_at_any_byte_is_never_called_clean(protocol: int, tmp_path: Path) -> None:
    data = pickle.dumps({"a": [1, 2.5, "x", (None, True)], "b": {"c": b"xy"}}, protocol)
    for length in range(len(data)):
        (tmp_path / "a.pkl").write_bytes(data[:length])
        assert open_legacy(tmp_path / "a.pkl").state == "torn"


def test_a_cut_file_tells_how_much_is_there(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", {f"w{at}": torch.zeros(1000) for at in range(10)})
    data = path.read_bytes()
    path.write_bytes(data[:22_000])
    contents = open_legacy(aged(path))
    assert len(contents.tensors) == 10 and "The file ends after 21.5 of 40." in words(contents)
    assert "it ends in its storages" in words(contents) and "tensors are incomplete" in words(contents)
    assert sum(storage.size == 4000 for storage in contents.storages) == 5
    path.write_bytes(data[:22_000])
    assert "it is still being saved" in words(open_legacy(path))


def test_an_empty_file_is_torn(tmp_path: Path) -> None:
    (tmp_path / "a.pt").touch()
    assert open_legacy(tmp_path / "a.pt").state == "torn"


def parts(*, version: int = 1001, keys: Any = None, count: int | None = None) -> bytes:
    """The older form with one part changed."""
    storage = torch.ones(3).untyped_storage()
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(3)}, buffer, _use_new_zipfile_serialization=False)
    data = buffer.getvalue()
    stream = io.BytesIO(data)
    loaded = [pickle.load(stream), pickle.load(stream), pickle.load(stream)]
    begin = stream.tell()
    end = data.index(b".\x80\2]", begin) + 1
    key = pickle.loads(data[end : data.index(b"a.", end) + 2])
    tail = struct.pack("<q", 3 if count is None else count) + bytes(storage)
    first = b"".join(pickle.dumps(value, 2) for value in (loaded[0], version, loaded[2]))
    return first + data[begin:end] + pickle.dumps(key if keys is None else keys, 2) + tail


def test_parts_that_do_not_fit_each_other_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(parts())
    assert open_legacy(path).state == "clean"
    for change, told in (
        ({"version": 1002}, "unknown format version"),
        ({"keys": ["7"]}, "Its content and its storages do not match: a storage is listed that the file does not have"),
        ({"keys": []}, "A tensor is incomplete: w"),
        ({"keys": {}}, "A tensor is incomplete: w"),
        ({"count": 2}, "a storage says 2 numbers where the content says 3"),
        ({"count": -1}, "a storage says -1 numbers"),
        ({"count": 1 << 60}, "a storage says"),
    ):
        path.write_bytes(parts(**change))
        contents = open_legacy(path)
        assert contents.state in ("torn", "unreadable") and told in words(contents), change


def test_numbers_of_a_big_endian_machine_are_never_called_clean(tmp_path: Path) -> None:
    stream = [pickle.dumps(value, 2) for value in (MAGIC, 1001, {"little_endian": False}, {"x": 1}, [])]
    (tmp_path / "a.pt").write_bytes(b"".join(stream))
    contents = open_legacy(tmp_path / "a.pt")
    assert contents.state == "unreadable" and words(contents) == "Its numbers are stored in big-endian order."


def test_views_of_storages_as_old_torch_wrote_them_are_told_and_not_called_clean(tmp_path: Path) -> None:
    class Views(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return obj if isinstance(obj, tuple) and obj[:1] == ("storage",) else None

    class Part:
        def __init__(self, begin: int) -> None:
            self.begin = begin

        def __reduce__(self) -> tuple[Any, ...]:
            storage = ("storage", torch.FloatStorage, "root", "cpu", 10, (f"view{self.begin}", self.begin, 4))
            return torch._utils._rebuild_tensor, (storage, 1, (2,), (1,))

    buffer = io.BytesIO()
    for value in (MAGIC, 1001, {"little_endian": True}):
        pickle.dump(value, buffer, 2)
    Views(buffer, 2).dump({"a": Part(2), "b": Part(5)})
    pickle.dump(["root"], buffer, 2)
    numbers = torch.arange(10.0)
    (tmp_path / "a.pt").write_bytes(buffer.getvalue() + struct.pack("<q", 10) + numbers.numpy().tobytes())
    contents = open_legacy(tmp_path / "a.pt")
    assert contents.state == "unreadable" and "as torch did before 0.4" in words(contents)


def test_a_tensor_in_a_bare_pickle_is_found_where_it_lies(tmp_path: Path) -> None:
    big = torch.arange(600_000.0)  # more than is kept of bytes
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"big": big, "small": torch.ones(3)}))
    contents = open_legacy(tmp_path / "a.pkl")
    assert contents.format == "pickle" and contents.state == "clean"
    for info, tensor in zip(contents.tensors, (big, torch.ones(3)), strict=True):
        storage = contents.storages[info.storage]
        assert (tmp_path / "a.pkl").read_bytes()[storage.offset : storage.offset + storage.size] == tensor.numpy().tobytes()


def test_a_long_stream_written_as_text_is_looked_into(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"x": torch.ones(600_000)}, 2))
    contents = open_legacy(tmp_path / "a.pkl")
    assert contents.state == "clean" and contents.tree == {"x": Opaque("torch.Tensor", ("float32", (600_000,)))}
    program = pickle.dumps([b"\xe9" * 600_000, os.system], 2)
    call = b"ctorch.storage\n_load_from_bytes\n(" + pickle.dumps(program, 2)[2:-1] + b"tR."
    (tmp_path / "a.pkl").write_bytes(b"\x80\2" + call)
    assert "posix.system" in open_legacy(tmp_path / "a.pkl").refused


def test_a_tensor_that_was_written_as_text_is_described(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"x": torch.ones(3), "step": 1}, 2))
    contents = open_legacy(tmp_path / "a.pkl")
    assert contents.state == "clean" and contents.tree == {"x": Opaque("torch.Tensor", ("float32", (3,))), "step": 1}
    assert contents.tensors == [] and "as text" in contents.notes[0]


@every_case("data", [b"hello world, this is no pickle\n", b"\x89PNG\r\n" + bytes(100), bytes(1000), b"\x80\2\xff"])
def test_what_is_no_pickle_is_unreadable_in_words(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(data)
    contents = open_legacy(tmp_path / "a.pt")
    assert contents.state == "unreadable" and "cannot be parsed" in words(contents)


def test_random_damage_is_never_an_exception(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    tree = {**TREE, "module": model, "half": torch.zeros(3, dtype=torch.float16)}
    good = [saved(tmp_path / "a.pt", tree).read_bytes(), *(pickle.dumps(tree, protocol) for protocol in (0, 2, 4, 5))]
    dice = random.Random(5)
    for turn in range(300):
        data = bytearray(good[turn % len(good)])
        for _ in range(dice.choice([1, 2, 10])):
            at = dice.randrange(len(data))
            if turn % 3 == 0:
                data[at] = dice.randrange(256)
            elif turn % 3 == 1:
                del data[at : at + dice.randrange(1, 30)]
            else:
                data[at : at + 4] = dice.choice([b"\xff" * 4, bytes(4), b"....", b"RRRR", b"bbbb", b"((((", b"\x81\x93\x94."])
        (tmp_path / "a.pt").write_bytes(bytes(data))
        contents = open_legacy(tmp_path / "a.pt")
        assert all(0 <= info.storage < len(contents.storages) for info in contents.tensors)
        assert all(storage.offset + storage.size <= len(data) for storage in contents.storages)
