"""What is read without running anything is what torch.load gives, number for number."""

from __future__ import annotations

import argparse
import collections
import datetime
import enum
import functools
import io
import pathlib
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from every_case import every_case
from torch import nn

from holdfast.checkpoints.contents import Contents, Opaque, TensorInfo
from holdfast.checkpoints.formats.legacy_file import open_legacy
from holdfast.checkpoints.formats.zip_file import open_zip
from holdfast.checkpoints.harmless import ITEM_SIZES

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
]
NEWER = [  # torch saves them in the older form too, and cannot load that
    *(torch.uint16, torch.uint32, torch.uint64, torch.complex32),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
]
OLD = {"_use_new_zipfile_serialization": False}


class Colour(enum.Enum):
    RED = 1


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), nn.ReLU())
        self.head = nn.Linear(3, 2)
        self.activation = torch.relu
        self.other = torch.nn.functional.gelu


class Marked(torch.Tensor):
    pass


def bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """A tensor of random bytes: also NaN, Inf and what else there is."""
    count = max(1, torch.Size(shape).numel()) * dtype.itemsize
    raw = np.random.default_rng(seed).integers(0, 2 if dtype == torch.bool else 256, count, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype)[: torch.Size(shape).numel()].reshape(shape)


def trees() -> dict[str, Any]:
    torch.manual_seed(0)
    big = torch.arange(60.0).reshape(3, 4, 5)
    model = Tower()
    optimizer = torch.optim.AdamW(model.parameters())
    model.head(model.body(torch.randn(4, 2, 1, 1)).flatten(1)).sum().backward()
    optimizer.step()
    tied = nn.Linear(4, 4)
    quantized = torch.quantize_per_tensor(torch.randn(3, 4), 0.1, 3, torch.quint8)
    by_channel = torch.quantize_per_channel(torch.randn(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.qint8)
    return {
        "training": {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "loss": 0.25, "name": "a"},
        "dtypes": {str(dtype): bits((3, 2), dtype) for dtype in DTYPES},
        "newer dtypes": {str(dtype): bits((3, 2), dtype) for dtype in NEWER},
        "views": {"row": big[1], "part": big[:, 1:3, ::2], "turned": big.permute(2, 0, 1), "wide": torch.ones(1).expand(3, 4)},
        "tied": {"one": tied.weight, "other": tied.weight, "data": tied.weight.data},
        "small": {"none": torch.empty(0), "flat": torch.empty(0, 3), "one": torch.tensor(4.5), "int": torch.tensor(3)},
        "parameter": {"weight": nn.Parameter(torch.randn(3)), "frozen": nn.Parameter(torch.ones(2), requires_grad=False)},
        "containers": [
            ({"a": [torch.ones(2), (torch.zeros(1),)]},),
            collections.OrderedDict(x=torch.ones(1)),
            {1: {(2, 3): big}},
        ],
        "module": {"model": model, "ema": model},
        "tensor": torch.randn(2, 3),
        "complex": {"conj": torch.randn(3, dtype=torch.complex64)},
        "quantized": {"one": quantized, "channels": by_channel},
        "subclass": {"x": torch.randn(3).as_subclass(Marked)},
        "channels-last": {"x": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)},
    }


TREES = trees()


def walk(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of what torch.load gave, by the name that it must have."""
    if isinstance(value, torch.Tensor):
        yield ".".join(path) or "tensor", value
    elif isinstance(value, nn.Module):
        for name, tensor in (*value.named_parameters(), *value.named_buffers()):
            yield ".".join((*path, name)), tensor
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from walk(part, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for at, part in enumerate(value):
            yield from walk(part, (*path, str(at)))


def as_bytes(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach()
    if plain.is_quantized:
        plain = plain.int_repr()
    flat = plain.as_subclass(torch.Tensor).contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def read(contents: Contents, info: TensorInfo) -> bytes:
    """The bytes of a tensor, by nothing but what was told about it."""
    storage, size = contents.storages[info.storage], ITEM_SIZES[info.dtype]
    with storage.file.open("rb") as file:
        file.seek(storage.offset)
        raw = np.frombuffer(file.read(storage.size), dtype=np.uint8)
    if 0 in info.shape:
        return b""
    steps = info.stride if info.stride is not None else torch.empty(info.shape, device="meta").stride()
    rows = np.lib.stride_tricks.as_strided(
        raw[info.offset * size :], (*info.shape, size), (*(step * size for step in steps), 1), writeable=False
    )
    return rows.tobytes()


def save(kind: str, tree: Any, path: Path) -> Contents:
    if kind == "pickle":
        path.write_bytes(pickle.dumps(tree))
        return open_legacy(path)
    torch.save(tree, path, **(OLD if kind == "legacy" else {}))
    return open_legacy(path) if kind == "legacy" else open_zip(path)


def load(kind: str, name: str, path: Path) -> Any:
    if name == "newer dtypes" and kind != "zip":
        return TREES[name]
    return pickle.loads(path.read_bytes()) if kind == "pickle" else torch.load(path, weights_only=False)


@every_case("kind", ["zip", "legacy", "pickle"])
@every_case("name", TREES)
def test_every_tensor_has_the_numbers_that_torch_loads(kind: str, name: str, tmp_path: Path) -> None:
    contents = save(kind, TREES[name], tmp_path / "a.pt")
    assert contents.state == "clean" and not contents.refused, contents.troubles
    wanted = dict(walk(load(kind, name, tmp_path / "a.pt")))
    found = {info.name: info for info in contents.tensors}
    assert list(found) == list(dict.fromkeys(wanted)) if name != "module" else set(found) == set(wanted)
    for key, tensor in wanted.items():
        assert (found[key].shape, f"torch.{found[key].dtype}") == (tuple(tensor.shape), str(tensor.dtype))
        assert read(contents, found[key]) == as_bytes(tensor), key


def test_tied_weights_share_a_storage(tmp_path: Path) -> None:
    contents = save("zip", TREES["tied"], tmp_path / "a.pt")
    assert len({info.storage for info in contents.tensors}) == 1 and len(contents.storages) == 1


def test_a_storage_without_a_kind_gets_the_kind_of_its_tensors(tmp_path: Path) -> None:
    contents = save("zip", {"x": bits((4,), torch.float8_e5m2)}, tmp_path / "a.pt")
    assert contents.storages[0].dtype == "float8_e5m2"


def test_the_bytes_of_an_element_are_torch_s() -> None:
    known = {name: getattr(torch, name).itemsize for name in ITEM_SIZES if isinstance(getattr(torch, name, None), torch.dtype)}
    assert {name: ITEM_SIZES[name] for name in known} == known
    assert set(ITEM_SIZES) >= {str(kind).removeprefix("torch.") for kind in (*DTYPES, *NEWER)}


@every_case("kind", ["zip", "legacy"])
def test_tensors_without_one_storage_are_described_by_their_parts(kind: str, tmp_path: Path) -> None:
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    tree = {
        "coo": dense.to_sparse(),
        "csr": dense.to_sparse_csr(),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "meta": torch.empty(3, 4, device="meta"),
    }
    contents = save(kind, tree, tmp_path / "a.pt")
    assert contents.state == "clean" and not contents.refused
    found = {info.name: read(contents, info) for info in contents.tensors}
    assert {as_bytes(torch.tensor([1.0, 2.0])), as_bytes(torch.ones(5))} <= set(found.values())
    assert {name.split(".")[0] for name in found} == {"coo", "csr", "nested"}
    assert contents.tree["meta"].name == "torch._utils._rebuild_meta_tensor_no_storage"


PLAIN = {
    "none": (None, None),
    "numbers": ([True, 1, -1, 300, 70_000, 1 << 40, -(1 << 200), 1.5], [True, 1, -1, 300, 70_000, 1 << 40, -(1 << 200), 1.5]),
    "text": ("grüße 你好 \U0001f600 \n\\ 'x'", "grüße 你好 \U0001f600 \n\\ 'x'"),
    "bytes": (b"a\0\xff", b"a\0\xff"),
    "byte row": (bytearray(b"a\xff"), b"a\xff"),
    "set": ({"b", "a"}, ["a", "b"]),
    "frozen set": (frozenset({3}), [3]),
    "complex": (1 + 2j, 1 + 2j),
    "nested": ([(1, [2, {"a": (3,)}])], [(1, [2, {"a": (3,)}])]),
    "keys": ({1: "a", None: "b", (1, "x"): "c", 1.5: "d", b"k": "e"}, {1: "a", None: "b", (1, "x"): "c", 1.5: "d", b"k": "e"}),
    "ordered": (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
    "default": (collections.defaultdict(list, a=[1]), {"a": [1]}),
    "counter": (collections.Counter("aab"), {"a": 2, "b": 1}),
    "deque": (collections.deque([1, 2], 5), [1, 2]),
    "size": (torch.Size([2, 3]), (2, 3)),
    "device": (torch.device("cuda", 1), "cuda:1"),
    "version": (torch.torch_version.TorchVersion("2.5.1"), "2.5.1"),
    "numpy numbers": (
        [np.float64(0.5), np.float32(0.25), np.int64(7), np.bool_(True), np.float16(1), np.complex64(1j), np.str_("ab")],
        [0.5, 0.25, 7, True, 1.0, 1j, "ab"],
    ),
    "path": (pathlib.PurePosixPath("/a/b"), "/a/b"),
    "moment": (datetime.datetime(2024, 5, 6, 7, 8, 9, 10), "2024-05-06T07:08:09.000010"),
    "moment in a zone": (datetime.datetime(2024, 5, 6, tzinfo=datetime.timezone.utc), "2024-05-06T00:00:00+00:00"),
    "day": (datetime.date(2024, 5, 6), "2024-05-06"),
}


@every_case("protocol", range(6))
@every_case("name", PLAIN)
def test_plain_values_come_out_as_they_went_in(name: str, protocol: int, tmp_path: Path) -> None:
    value, wanted = PLAIN[name]
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(value, protocol))
    contents = open_legacy(tmp_path / "a.pkl")
    assert contents.tree == wanted and type(contents.tree) is type(wanted)
    assert contents.state == "clean" and not contents.refused and not contents.needs_code


@every_case("protocol", range(6))
def test_half_a_character_is_replaced_by_one_that_can_be_printed(protocol: int, tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"a\ud800": "\udfff"}, protocol))
    assert str(open_legacy(tmp_path / "a.pkl").tree).encode()


class Slots:
    __slots__ = ("other", "weight")


def test_an_object_with_slots_gives_its_attributes(tmp_path: Path) -> None:
    slots = Slots()
    slots.weight, slots.other = torch.ones(2), 1
    contents = save("zip", {"x": slots}, tmp_path / "a.pt")
    assert [info.name for info in contents.tensors] == ["x.weight"] and contents.tree["x"].state["other"] == 1


@every_case("protocol", range(6))
def test_what_else_stands_in_checkpoints_is_described(protocol: int, tmp_path: Path) -> None:
    tree = {
        "settings": argparse.Namespace(lr=0.1, name="x"),
        "array": np.arange(6, dtype=np.float32).reshape(2, 3),
        "random": np.random.RandomState(0).get_state(),
        "python": random.Random(0).getstate(),
        "generator": np.random.default_rng(0),
        "partial": functools.partial(torch.relu, inplace=True),
        "dtype": torch.bfloat16,
    }
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(tree, protocol))
    contents = open_legacy(tmp_path / "a.pkl")
    assert contents.state == "clean" and not contents.refused
    assert contents.tree["settings"] == Opaque("argparse.Namespace", (), {"lr": 0.1, "name": "x"})
    assert contents.tree["array"] == Opaque("numpy.ndarray", ("float32", (2, 3)), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    assert contents.tree["random"][1].state == tree["random"][1].tolist() and contents.tree["python"] == tree["python"]
    assert contents.tree["dtype"] == Opaque("torch.bfloat16")
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"enum": Colour.RED}, protocol))
    contents = open_legacy(tmp_path / "a.pkl")  # a call, of a name that nobody here can know
    assert contents.tree["enum"] == Opaque(f"{__name__}.Colour", (1,)) and contents.refused == [f"{__name__}.Colour"]


def test_a_file_that_torch_writes_for_weights_only_loading_needs_no_code(tmp_path: Path) -> None:
    for name in ("training", "dtypes", "newer dtypes", "views", "tied", "small", "parameter", "quantized"):
        buffer = io.BytesIO()
        torch.save(TREES[name], buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
        contents = save("zip", TREES[name], tmp_path / f"{name}.pt")
        assert contents.needs_code == [] and contents.refused == []


def test_a_pickled_model_needs_code_and_names_its_tensors_as_its_state_dict_does(tmp_path: Path) -> None:
    model = Tower()
    contents = save("zip", model, tmp_path / "a.pt")
    assert {info.name for info in contents.tensors} == set(model.state_dict())
    assert f"{__name__}.Tower" in contents.needs_code and contents.state == "clean" and contents.refused == []
