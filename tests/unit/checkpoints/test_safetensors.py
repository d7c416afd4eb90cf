"""Our safetensors files are everybody's: the safetensors package reads them, and we read its."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from every_case import every_case
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import nn

from holdfast.checkpoints.safetensors import PIECE, Tensors, can_hold, count, read_safetensors, write_safetensors
from holdfast.errors import StorageError

KINDS = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.uint16, torch.uint32, torch.uint64),
]


def write(path: Path, content: Tensors) -> dict[str, object]:
    with path.open("wb") as file:
        return write_safetensors(file.write, content)


def random_of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    values = torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 100
    return values.to(dtype) if dtype is not torch.bool else values > 50


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and _bytes(left) == _bytes(right)


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@every_case("dtype", KINDS, ids=str)
def test_every_kind_of_number_is_read_by_the_safetensors_package(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {
        "a": random_of(dtype, 3, 5),
        "odd one": random_of(torch.uint8, 3),
        "none": random_of(dtype, 0, 4),
        "one": random_of(dtype),
    }
    write(tmp_path / "x.safetensors", Tensors(tensors))
    for found in (load_file(tmp_path / "x.safetensors"), read_safetensors(tmp_path / "x.safetensors").tensors):
        assert found.keys() == tensors.keys() and all(same(found[name], tensor) for name, tensor in tensors.items())


@every_case("dtype", KINDS, ids=str)
def test_what_the_safetensors_package_wrote_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {"a": random_of(dtype, 3, 5), "b": random_of(torch.uint8, 3), "c": random_of(dtype, 7)}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    found = read_safetensors(tmp_path / "x.safetensors").tensors
    assert found.keys() == tensors.keys() and all(same(found[name], tensor) for name, tensor in tensors.items())


def test_numbers_that_are_not_aligned_are_read(tmp_path: Path) -> None:
    """Allowed by the format, and written by some."""
    values = torch.arange(5.0)
    header = json.dumps(
        {"b": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "a": {"dtype": "F32", "shape": [5], "data_offsets": [1, 21]}}
    )
    data = struct.pack("<Q", len(header)) + header.encode() + b"\x07" + values.numpy().tobytes()
    (tmp_path / "x.safetensors").write_bytes(data)
    found = read_safetensors(tmp_path / "x.safetensors").tensors
    assert torch.equal(found["a"], values) and found["b"].tolist() == [7]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight


def test_a_tied_weight_is_written_once_and_taken_by_load_model(tmp_path: Path) -> None:
    model, other = Tied(), Tied()
    write(tmp_path / "x.safetensors", Tensors({"embed.weight": model.embed.weight}, {"head.weight": "embed.weight"}))
    assert (tmp_path / "x.safetensors").stat().st_size < 10 * 4 * 4 + 300
    load_model(other, tmp_path / "x.safetensors")
    assert torch.equal(other.head.weight, model.head.weight)
    assert read_safetensors(tmp_path / "x.safetensors").tied == {"head.weight": "embed.weight"}
    save_model(model, tmp_path / "theirs.safetensors")
    theirs = read_safetensors(tmp_path / "theirs.safetensors")
    assert {*theirs.tensors, *theirs.tied} == {"embed.weight", "head.weight"}


@every_case("shape", [(2, 3, 4, 5), (1, 8, 1, 1), (64, 3, 200, 200)])
def test_a_tensor_that_lies_in_another_order_is_written_in_the_order_of_its_places(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    last = random_of(torch.bfloat16, *shape).to(memory_format=torch.channels_last)
    flipped = random_of(torch.float32, 7, 5).t()
    holes = random_of(torch.float32, 9, 9)[::2, 1::3]
    tensors = {"last": last, "flipped": flipped, "holes": holes, "conj": random_of(torch.complex64, 4).conj()}
    write(tmp_path / "x.safetensors", Tensors(tensors))
    found = load_file(tmp_path / "x.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_a_name_in_any_language_and_no_tensor_at_all(tmp_path: Path) -> None:
    write(tmp_path / "x.safetensors", Tensors({'größe."x"\n': torch.ones(2)}))
    assert load_file(tmp_path / "x.safetensors").keys() == {'größe."x"\n'}
    write(tmp_path / "empty.safetensors", Tensors({}))
    assert load_file(tmp_path / "empty.safetensors") == {} and not read_safetensors(tmp_path / "empty.safetensors").tensors


def test_what_a_file_cannot_hold_is_known_before() -> None:
    assert not can_hold(torch.complex128) and not can_hold(torch.qint8) and can_hold(torch.bfloat16)


def test_a_damaged_file_is_refused_in_words(tmp_path: Path) -> None:
    write(tmp_path / "x.safetensors", Tensors({"a": torch.ones(20)}))
    whole = (tmp_path / "x.safetensors").read_bytes()
    for cut in range(0, len(whole), 9):
        (tmp_path / "x.safetensors").write_bytes(whole[:cut])
        with pytest.raises(StorageError, match="cannot be read"):
            read_safetensors(tmp_path / "x.safetensors")


# Numbers that are not finite


@every_case("dtype", [kind for kind in KINDS if kind.is_floating_point], ids=str)
def test_bad_numbers_are_counted_in_every_kind(dtype: torch.dtype) -> None:
    values = torch.full((1000,), torch.finfo(dtype).max, dtype=torch.float32 if dtype.itemsize == 1 else dtype).to(dtype)
    assert count(values) == 0, "the largest number there is is finite, though a sum of them is not"
    wide = values.to(torch.float32 if dtype.itemsize < 4 else dtype)
    wide[[3, 500, 999]] = torch.tensor([torch.nan, torch.nan, -torch.nan], dtype=wide.dtype)
    assert count(wide.to(dtype)) == 3
    if dtype is not torch.float8_e4m3fn:  # which has none
        wide[[4, 5]] = torch.tensor([torch.inf, -torch.inf], dtype=wide.dtype)
        assert count(wide.to(dtype)) == 5


def test_whole_numbers_are_always_finite() -> None:
    assert count(torch.full((8,), -1)) == 0


def test_bad_numbers_are_counted_over_all_pieces(tmp_path: Path) -> None:
    big = torch.zeros(3 * PIECE // 4 + 5)
    big[[0, PIECE // 4, -1]] = torch.nan
    facts = write(tmp_path / "x.safetensors", Tensors({"big": big}))
    assert facts["tensors"]["big"]["non_finite"] == 3  # type: ignore[index]
