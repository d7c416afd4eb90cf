"""Zip files of torch.save: cut, damaged, packed again, without checksums, with records that lie."""

from __future__ import annotations

import os
import random
import struct
import time
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from every_case import every_case
from torch import nn

from holdfast.checkpoints.contents import Contents
from holdfast.checkpoints.formats.zip_file import open_zip

TREE = {"model": {"w": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(3)}, "epoch": 3, "lr": [0.1]}
NAMES = ["model.w", "model.b"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.save(TREE, tmp_path / "a.pt")
    return tmp_path / "a.pt"


def aged(path: Path, seconds: float = 3600.0) -> Path:
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


def words(contents: Contents) -> str:
    return " ".join(trouble.text for trouble in contents.troubles)


def rewritten(path: Path, **options: Any) -> Path:
    """The same records in an archive of Python's."""
    with zipfile.ZipFile(path) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, data in records.items():
            archive.writestr(name, data)
    return path


def entry(data: bytes, name: bytes) -> int:
    """Where the entry of a record begins in the index."""
    at = data.find(b"PK\1\2")
    while data[at + 46 : at + 46 + len(name)] != name:
        at = data.index(b"PK\1\2", at + 1)
    return at


def test_a_training_s_checkpoint_is_read(path: Path) -> None:
    contents = open_zip(path)
    assert contents.state == "clean" and contents.troubles == [] and contents.notes == []
    assert contents.format == "torch zip" and contents.versions == {}
    assert [info.name for info in contents.tensors] == NAMES and contents.tree["epoch"] == 3 and contents.tree["lr"] == [0.1]
    data = path.read_bytes()
    for storage in contents.storages:
        assert zlib.crc32(data[storage.offset : storage.offset + storage.size]) == storage.crc32
        assert storage.offset % 64 == 0 and storage.name.startswith("a/data/")


def test_versions_that_a_checkpoint_tells_are_kept(tmp_path: Path) -> None:
    torch.save({"pytorch-lightning_version": "2.4.0", "torch_version": torch.__version__}, tmp_path / "a.ckpt")
    assert open_zip(tmp_path / "a.ckpt").versions.items() >= {"lightning": "2.4.0", "torch": torch.__version__}.items()


def test_a_file_cut_at_any_byte_is_never_called_clean(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    cut = tmp_path / "cut.pt"
    index = data.index(b"PK\1\2")
    for length in (*range(0, index, 5), *range(index, len(data))):
        cut.write_bytes(data[:length])
        aged(cut)
        contents = open_zip(cut)
        assert contents.state == "torn", (length, contents.troubles)
        assert contents.refused == [] and contents.troubles[0].fix


def test_a_cut_file_tells_how_much_of_it_is_there_and_what_it_held(tmp_path: Path) -> None:
    torch.save({f"w{at}": torch.zeros(1000) for at in range(10)}, tmp_path / "a.pt")
    data = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "a.pt").write_bytes(data[: len(data) // 2])
    contents = open_zip(aged(tmp_path / "a.pt"))
    assert [info.name for info in contents.tensors] == [f"w{at}" for at in range(10)]
    assert contents.troubles[0].text.startswith("The file ends after 21.1 of 41.1 KiB")
    assert len(contents.troubles) == 1


def test_a_file_without_its_index_only_says_so(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"PK\1\2")])
    contents = open_zip(aged(path))
    assert contents.state == "torn" and "without the index" in words(contents)
    assert contents.tree["epoch"] == 3 and [info.name for info in contents.tensors] == NAMES


def test_a_file_that_is_still_being_written_is_told_from_one_that_was_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:900])
    assert "it is still being saved" in words(open_zip(path))
    assert {trouble.fix for trouble in open_zip(path).troubles} == {"wait until the save is done, then look again"}
    aged(path)
    assert "the save was interrupted" in words(open_zip(path)) and "older one" in open_zip(path).troubles[0].fix


def test_a_file_without_checksums_is_not_called_torn(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(TREE, tmp_path / "a.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    contents = open_zip(tmp_path / "a.pt")
    assert contents.state == "clean" and {storage.crc32 for storage in contents.storages} == {None}
    assert contents.notes == ["it was saved without checksums: damage cannot be detected"]


def test_tensors_that_were_left_out_of_a_save_are_noted(tmp_path: Path) -> None:
    with torch.serialization.skip_data():
        torch.save(TREE, tmp_path / "a.pt")
    contents = open_zip(tmp_path / "a.pt")
    assert contents.state == "clean" and "skip_data" in contents.notes[0]
    assert {storage.crc32 for storage in contents.storages} == {None}


def test_a_flipped_bit_in_the_pickle_is_found_by_its_checksum(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = data.index(b"model")
    data[at] ^= 1
    path.write_bytes(bytes(data))
    contents = open_zip(path)
    assert contents.state == "torn" and "Bytes of a/data.pkl have changed" in words(contents)


def test_a_name_in_damaged_bytes_may_be_only_the_damage(path: Path) -> None:
    data = path.read_bytes().replace(b"OrderedDict", b"OrderedDicu")
    path.write_bytes(data)
    contents = open_zip(path)
    assert contents.state == "unsafe" and "unless the name is only the damage" in words(contents)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_an_archive_that_was_packed_again_is_read_as_far_as_it_can(path: Path, method: int) -> None:
    contents = open_zip(rewritten(path, compression=method))
    if method == zipfile.ZIP_STORED:
        assert contents.state == "clean" and [info.name for info in contents.tensors] == NAMES
        return
    assert contents.state == "unreadable" and "is compressed" in words(contents)
    if method == zipfile.ZIP_DEFLATED:
        assert contents.tree["epoch"] == 3 and [info.name for info in contents.tensors] == NAMES
        (trouble,) = contents.troubles
        assert "save it again" in trouble.fix and "incomplete" not in trouble.text
        assert {storage.size for storage in contents.storages} == {0}


def test_a_storage_that_is_missing_or_too_short_names_its_tensors(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    for change in ({}, {"a/data/1": b"1234"}):
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in {**{name: data for name, data in records.items() if name != "a/data/1"}, **change}.items():
                archive.writestr(name, data)
        contents = open_zip(path)
        assert contents.state == "torn" and "A tensor is incomplete: model.b" in words(contents)
        assert contents.troubles[0].where == "model.b"


@pytest.mark.parametrize(
    ("at", "value", "told"),
    [
        (20, struct.pack("<I", 25), "two different sizes"),
        (20, struct.pack("<I", 1 << 30), "is longer than the file"),
        (24, struct.pack("<I", 7), "two different sizes"),
        (42, struct.pack("<I", 5), "is not where the index says"),
        (42, struct.pack("<I", 0xFFFFFFF0), "is not where the index says"),
        (8, struct.pack("<H", 1), "is encrypted"),
        (10, struct.pack("<H", 99), "is compressed in a way that torch cannot read"),
        (46, b"z", "has a different name in the index"),
    ],
)
def test_an_index_that_lies_is_told(path: Path, at: int, value: bytes, told: str) -> None:
    data = bytearray(path.read_bytes())
    begin = entry(bytes(data), b"a/data/0")
    data[begin + at : begin + at + len(value)] = value
    path.write_bytes(bytes(data))
    contents = open_zip(path)
    assert contents.state in ("torn", "unreadable") and told in words(contents)


def test_a_size_that_reaches_beyond_the_file_is_told(path: Path) -> None:
    data = bytearray(path.read_bytes())
    begin = entry(bytes(data), b"a/data/0")
    data[begin + 20 : begin + 28] = struct.pack("<II", 1 << 30, 1 << 30)
    path.write_bytes(bytes(data))
    contents = open_zip(path)
    assert contents.state == "torn" and "is longer than the file" in words(contents)
    assert all(storage.offset + storage.size <= len(data) for storage in contents.storages)


def test_records_that_lie_on_each_other_are_told(path: Path) -> None:
    data = bytearray(path.read_bytes())
    begin = entry(bytes(data), b"a/data/0")
    data[begin + 20 : begin + 28] = struct.pack("<II", 200, 200)
    path.write_bytes(bytes(data))
    contents = open_zip(path)
    assert contents.state == "unreadable" and "Two records overlap (a/data/0, a/data/1)" in words(contents)


def test_names_that_lead_out_of_a_folder_are_noted(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../evil", b"x")
    contents = open_zip(path)
    assert "point outside the folder" in contents.notes[0] and [info.name for info in contents.tensors] == NAMES


def test_an_archive_of_something_else_is_no_checkpoint(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("readme.txt", b"hello")
    contents = open_zip(tmp_path / "a.pt")
    assert contents.state == "unreadable" and "without data.pkl" in words(contents)
    with zipfile.ZipFile(tmp_path / "a.pt", "w"):
        pass
    assert open_zip(tmp_path / "a.pt").state == "unreadable"


def test_a_torchscript_archive_gives_its_weights_and_says_that_it_holds_code(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    torch.jit.script(model).save(str(tmp_path / "a.pt"))
    contents = open_zip(tmp_path / "a.pt")
    assert contents.state == "clean" and contents.refused == [] and "TorchScript" in contents.notes[0]
    assert {info.name for info in contents.tensors} == set(model.state_dict())
    data = (tmp_path / "a.pt").read_bytes()
    for length in range(0, len(data), 97):
        (tmp_path / "a.pt").write_bytes(data[:length])
        assert open_zip(tmp_path / "a.pt").state == "torn"


def test_numbers_of_a_big_endian_machine_are_never_called_clean(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**records, "a/byteorder": b"big"}.items():
            archive.writestr(name, data)
    contents = open_zip(path)
    assert contents.state == "unreadable" and words(contents) == "Its numbers are stored in big-endian order."


def test_a_file_beyond_four_gigabytes_is_found_by_its_larger_fields(tmp_path: Path) -> None:
    """A sparse file: its records lie where only 64-bit offsets reach."""
    path = tmp_path / "a.pt"
    torch.save(TREE, path)
    with zipfile.ZipFile(path) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    gap, index, full = 5 << 30, b"", 0xFFFFFFFF
    with path.open("wb") as file:
        for number, (name, data) in enumerate(records.items()):
            start, size, crc = number * 4096 + (gap if number > 3 else 0), len(data), zlib.crc32(data)
            file.seek(start)
            file.write(struct.pack("<4s5H3I2H", b"PK\3\4", 45, 0, 0, 0, 0, crc, full, full, len(name), 20))
            file.write(name.encode() + struct.pack("<HHQQ", 1, 16, size, size) + data)
            head = (b"PK\1\2", 45, 45, 0, 0, 0, 0, crc, full, full, len(name), 28, 0, 0, 0, 0, full)
            index += struct.pack("<4s6H3I5H2I", *head) + name.encode() + struct.pack("<HHQQQ", 1, 24, size, size, start)
        at = file.tell()
        file.write(index)
        file.write(struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, len(records), len(records), len(index), at))
        file.write(struct.pack("<4sIQI", b"PK\6\7", 0, at + len(index), 1))
        file.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0))
    contents = open_zip(path)
    assert contents.state == "clean", contents.troubles
    with path.open("rb") as file:
        for storage in contents.storages:
            file.seek(storage.offset)
            assert storage.offset > gap and zlib.crc32(file.read(storage.size)) == storage.crc32


@every_case("said", [10, 1 << 30, 0xFFFFFFF0])
def test_a_packed_pickle_of_another_size_than_it_says_is_given_up(said: int, tmp_path: Path) -> None:
    packed = zlib.compress(b"\x80\2N" + b"0N" * (4 << 20) + b".", 9)[2:-4]
    name, sizes = b"a/data.pkl", (0, len(packed), said)
    head = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 8, 0, 0, *sizes, len(name), 0) + name + packed
    index = struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 8, 0, 0, *sizes, len(name), 0, 0, 0, 0, 0, 0) + name
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(index), len(head), 0)
    (tmp_path / "a.pt").write_bytes(head + index + end)
    contents = open_zip(tmp_path / "a.pt")
    assert contents.state == "unreadable" and "cannot be decompressed" in words(contents)


def test_random_damage_is_never_an_exception(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    torch.save({**TREE, "module": model, "ints": torch.arange(3)}, tmp_path / "a.pt")
    good, dice = (tmp_path / "a.pt").read_bytes(), random.Random(4)
    for _ in range(300):
        (tmp_path / "a.pt").write_bytes(damaged(good, dice))
        contents = open_zip(tmp_path / "a.pt")
        assert all(0 <= info.storage < len(contents.storages) for info in contents.tensors)
        size = contents.files[0].size
        assert all(storage.offset + storage.size <= size for storage in contents.storages)


def damaged(good: bytes, dice: random.Random) -> bytes:
    data = bytearray(good)
    how = dice.randrange(5)
    for _ in range(dice.choice([1, 2, 10])):
        at = dice.randrange(len(data))
        if how == 0:
            data[at] ^= 1 << dice.randrange(8)
        elif how == 1:
            data[at] = dice.randrange(256)
        elif how == 2:
            del data[at : at + dice.randrange(1, 60)]
        elif how == 3:
            data[at : at + 4] = dice.choice([b"\xff" * 4, bytes(4), b"PK\5\6", b"PK\3\4", b"PK\1\2", b"\x80\2.."])
        else:
            other = dice.randrange(len(data))
            data[at : at + 40] = data[other : other + 40]
    return bytes(data)
