"""A safetensors file is read to the letter: what is cut, overlaps or does not add up is told, and nothing is called clean."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from every_case import every_case
from safetensors.torch import load_file, save_file

from holdfast.checkpoints.contents import Contents
from holdfast.checkpoints.formats.safetensors_file import DTYPES, open_safetensors

TENSORS = {"layer.weight": torch.arange(12.0).reshape(3, 4), "layer.bias": torch.zeros(3), "steps": torch.tensor(7)}


def good(path: Path, tensors: dict[str, torch.Tensor] | None = None, **metadata: str) -> Path:
    save_file(TENSORS if tensors is None else tensors, path, metadata=metadata or None)
    return path


def by_hand(path: Path, header: Any, data: bytes = b"", *, length: int | None = None) -> Contents:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return open_safetensors(path)


def entry(begin: int, end: int, shape: list[int] | None = None, dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def the_trouble(contents: Contents) -> str:
    assert contents.troubles, "called clean"
    return contents.troubles[0].text


def test_every_tensor_lies_where_the_header_says(tmp_path: Path) -> None:
    path = good(tmp_path / "a.safetensors")
    contents = open_safetensors(path)
    assert contents.state == "clean" and contents.size == path.stat().st_size
    for name, info in contents.tree.items():
        storage = contents.storages[info.storage]
        data = bytearray(path.read_bytes()[storage.offset : storage.offset + storage.size])
        value = torch.frombuffer(data, dtype=getattr(torch, info.dtype)).reshape(info.shape)
        assert torch.equal(value, TENSORS[name]) and info.name == name
    assert {tensor.name for tensor in contents.tensors} == set(TENSORS)


@every_case("name", sorted(DTYPES))
def test_every_kind_of_number_that_the_library_writes_is_known(tmp_path: Path, name: str) -> None:
    dtype = getattr(torch, DTYPES[name])
    try:
        path = good(tmp_path / "a.safetensors", {"x": torch.zeros(6, dtype=torch.uint8).to(dtype)})
    except (ValueError, KeyError):
        pytest.skip("this release of safetensors does not write it")
    contents = open_safetensors(path)
    assert contents.state == "clean"
    assert contents.tensors[0].dtype == str(dtype).removeprefix("torch.") and contents.storages[0].size == 6 * dtype.itemsize
    assert f'"{name}"'.encode() in path.read_bytes()


def test_empty_files_scalars_and_tensors_without_numbers_are_whole(tmp_path: Path) -> None:
    assert open_safetensors(good(tmp_path / "none", {})).state == "clean"
    tensors = {"empty": torch.zeros(0, 5), "scalar": torch.tensor(1.0), "z": torch.zeros(0)}
    contents = open_safetensors(good(tmp_path / "a", tensors))
    assert contents.state == "clean" and {tensor.name: tensor.shape for tensor in contents.tensors}["empty"] == (0, 5)


def test_notes_and_versions_come_from_the_metadata(tmp_path: Path) -> None:
    contents = open_safetensors(good(tmp_path / "a", format="pt", framework_version="1.2"))
    assert contents.tree["__metadata__"] == {"format": "pt", "framework_version": "1.2"}
    assert contents.versions == {"framework_version": "1.2"}


def test_a_file_cut_at_any_byte_is_never_called_clean(tmp_path: Path) -> None:
    whole = good(tmp_path / "whole").read_bytes()
    path = tmp_path / "cut"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        contents = open_safetensors(path)
        assert contents.state == "torn", length
        assert contents.troubles[0].fix


def test_a_cut_file_says_how_much_is_missing_and_which_tensors_are_not_whole(tmp_path: Path) -> None:
    path = good(tmp_path / "a")
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    words = the_trouble(open_safetensors(path))
    assert f"10 of {len(whole):,} bytes are missing" in words and "1 of 3 tensors" in words
    last = max(open_safetensors(good(tmp_path / "b")).storages, key=lambda storage: storage.offset)
    assert last.name in words


@every_case(
    ("header", "data", "words"),
    [
        (
            b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
            b"",
            "twice",
        ),
        ({"a": entry(0, 4), "b": entry(2, 6)}, b"123456", "b begins inside a"),
        ({"a": entry(0, 4), "b": entry(6, 8)}, b"12345678", "2 bytes before b belong to no tensor"),
        ({"a": entry(2, 4)}, b"1234", "2 bytes before a"),
        ({"a": entry(0, 4)}, b"123456", "2 bytes follow its last tensor"),
        ({}, b"123456", "6 bytes follow"),
        ({"a": entry(0, 4, [3])}, b"1234", "takes 3 bytes, not 4"),
        ({"a": entry(0, 4, [2], "F32")}, b"1234", "takes 8 bytes, not 4"),
        ({"a": entry(0, 4, dtype="Q7")}, b"1234", "an unknown dtype: Q7"),
        ({"a": entry(4, 0, [0])}, b"1234", "damaged"),
        ({"a": {"dtype": "U8", "shape": [1]}}, b"1", "in an invalid way"),
        ({"a": {**entry(0, 1), "more": 1}}, b"1", "in an invalid way"),
        ({"a": entry(0, 1, [-1])}, b"1", "in an invalid way"),
        ({"a": entry(0, 1, [True])}, b"1", "in an invalid way"),
        ({"a": entry(0, 1, [1 << 70])}, b"1", "in an invalid way"),
        ({"a": entry(0, 1, [1 << 40, 1 << 40])}, b"1", "more elements than any tensor"),
        ({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1.0]}}, b"1", "in an invalid way"),
        ({"a": 3}, b"", "in an invalid way"),
        ({"__metadata__": {"a": 3}}, b"", "are not text"),
        (b"{", b"", "damaged"),
        (b"[]", b"", "does not start with a brace"),
        (b'{"a\xff":1}', b"", "is not text"),
        (b'{"\\ud800":1}', b"", "invalid character"),
        (b"{" + b'"a":{' * 100_000, b"", "nested too deeply"),
        (b'{"a":' + b"9" * 100_000 + b"}", b"", "damaged"),
    ],
)
def test_a_header_that_does_not_add_up_is_told_in_words(tmp_path: Path, header: Any, data: bytes, words: str) -> None:
    contents = by_hand(tmp_path / "a", header, data)
    assert words in the_trouble(contents) and contents.state == "unreadable"


def test_a_header_length_that_no_file_has_is_not_read(tmp_path: Path) -> None:
    assert "are enough for 250,000 tensors" in the_trouble(by_hand(tmp_path / "a", b"{}", length=1 << 60))
    assert by_hand(tmp_path / "a", b"{}", length=1000).state == "torn"


def test_names_that_a_terminal_would_obey_are_written_out(tmp_path: Path) -> None:
    contents = by_hand(tmp_path / "a", {"\x1b]0;gone\x07" * 100: entry(0, 9)}, b"1234")
    assert "\x1b" not in the_trouble(contents) and len(the_trouble(contents)) < 1500


def test_a_thousand_damaged_entries_make_a_few_troubles(tmp_path: Path) -> None:
    contents = by_hand(tmp_path / "a", {str(n): entry(n, n + 1, [2]) for n in range(1000)}, b"1" * 1000)
    assert 1 < len(contents.troubles) < 20 and contents.tensors == []


def test_numbers_of_four_and_six_bits_are_counted_and_noted(tmp_path: Path) -> None:
    contents = by_hand(tmp_path / "a", {"a": entry(0, 4, [8], "F4"), "b": entry(4, 7, [4], "F6_E2M3")}, b"1234567")
    assert contents.state == "clean" and "less than 8 bits" in contents.notes[0]
    assert by_hand(tmp_path / "a", {"a": entry(0, 4, [9], "F4")}, b"1234").state == "unreadable"


def test_a_header_changed_at_random_never_raises_and_is_clean_only_if_the_library_reads_it(tmp_path: Path) -> None:
    chance = random.Random(0)
    whole = good(tmp_path / "whole", format="pt").read_bytes()
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    path = tmp_path / "changed"
    for _ in range(800):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 1, 1, 2, 5))):
            _change(data, header, chance)
        path.write_bytes(data)
        contents = open_safetensors(path)
        try:
            load_file(path)
        except Exception:  # noqa: BLE001 - it has a kind of its own
            assert contents.state != "clean", bytes(data)
        else:
            assert contents.state == "clean", bytes(data)


def _change(data: bytearray, header: int, chance: random.Random) -> None:
    """Flip, drop, double or overwrite some of the header, or cut the file."""
    if len(data) < 2:
        return
    at = chance.randrange(min(header, len(data)))
    what = chance.randrange(6)
    if what == 0:
        data[at] ^= 1 << chance.randrange(8)
    elif what == 1:
        data[at] = chance.choice(b'0123456789{}[]",:')
    elif what == 2:
        del data[at : at + chance.randrange(1, 9)]
    elif what == 3:
        data[at:at] = data[at : at + chance.randrange(1, 9)]
    elif what == 4:
        data[at : at + 8] = chance.randbytes(8)
    else:
        del data[chance.randrange(1, len(data)) :]
