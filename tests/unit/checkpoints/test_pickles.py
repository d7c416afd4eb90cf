"""Pickles are read without running them, whatever they are made of: bounded time and memory, and never an exception."""

from __future__ import annotations

import collections
import contextlib
import io
import pickle
import pickletools
import random
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from every_case import every_case

from holdfast.checkpoints.contents import Opaque, TensorInfo
from holdfast.checkpoints.pickled import machine
from holdfast.checkpoints.pickled.opcodes import OPCODES, Blob, CutShort, LongText, NotFollowed, Source
from holdfast.checkpoints.pickles import Unpickled, read_pickle

VALUES: list[Any] = [
    *(None, True, False, 0, 255, 256, 65536, -1, 1 << 31, -(1 << 70), 1.5, "a", "ü" * 300, b"x", b"y" * 300),
    *([], (), {}, (1, 2, 3)),
    *([1, [2, (3, {4: 5})]], {"a": {"b": [1] * 2000}}, {1, 2}, frozenset({3}), bytearray(b"z"), 1j, range(3), slice(1, 2)),
    *(collections.OrderedDict(a=1), torch.float32, torch.Size([1, 2]), torch.device("cpu")),
]


def read(stream: bytes) -> Unpickled:
    return read_pickle(io.BytesIO(stream))


@every_case("protocol", range(6))
def test_instructions_are_the_ones_that_pickletools_reads(protocol: int) -> None:
    for value in VALUES:
        stream = pickle.dumps(value, protocol)
        source = Source(io.BytesIO(stream))
        for opcode, argument, at in pickletools.genops(stream):
            assert source.offset == at and source.byte() == ord(opcode.code)
            _, reader = OPCODES[ord(opcode.code)]
            found = reader(source)
            if opcode.name in ("GLOBAL", "INST"):
                assert " ".join(found) == argument
            elif isinstance(found, Blob):
                assert found.data == argument and stream[found.offset :].startswith(found.data)
            elif opcode.name not in ("NEWTRUE", "NEWFALSE", "TUPLE1", "TUPLE2", "TUPLE3"):  # these say it by themselves
                assert found == argument, opcode.name


def test_every_instruction_of_python_is_known() -> None:
    assert set(OPCODES) == {ord(opcode.code) for opcode in pickletools.opcodes}


@every_case("kind", ["lists", "tuples", "dicts", "objects"])
def test_nesting_without_end_is_no_recursion(kind: str) -> None:
    depth = 40_000  # far beyond Python's limit, and beyond what a stack of C holds
    stream = {
        "lists": b"]" * depth + b"a" * (depth - 1),
        "tuples": b"N" + b"\x85" * depth,
        "dicts": b"}K\1" * depth + b"N" + b"s" * depth,
        "objects": b"cmy\nThing\np0\n0" + b"(g0\n" * depth + b"o" * depth,
    }[kind] + b"."
    told = read(stream)
    assert "nested" in str(told.problem)
    levels, node = 0, told.tree
    while isinstance(node, list | tuple | dict | Opaque) and node != Opaque("not listed"):
        inner = node.arguments if isinstance(node, Opaque) else list(node.values()) if isinstance(node, dict) else node
        node, levels = inner[0], levels + 1
    assert levels == 64


def test_a_list_that_holds_itself_is_listed_once() -> None:
    circle: list[Any] = [1]
    circle.append({"again": circle})
    told = read(pickle.dumps(circle))
    assert told.tree == [1, {"again": Opaque("an object that holds it")}] and told.problem is None


def test_what_stands_at_two_places_is_listed_at_both() -> None:
    shared = {"w": 1}
    assert read(pickle.dumps({"a": shared, "b": shared})).tree == {"a": {"w": 1}, "b": {"w": 1}}


def test_a_billion_laughs_are_not_listed() -> None:
    lists = b"".join(b"](" + (b"h" + bytes([level])) * 10 + b"eq" + bytes([level + 1]) for level in range(30))
    told = read(b"]q\0" + lists + b".")
    assert "too often" in str(told.problem)
    assert len(repr(told.tree)) < 50_000_000


@every_case(
    "stream",
    [
        b"X\xff\xff\xff\xff" + b"x" * 100,
        b"\x8d" + struct.pack("<Q", 1 << 60) + b"x",
        b"\x8e" + struct.pack("<Q", (1 << 64) - 1) + b"x",
        b"\x96" + struct.pack("<Q", 1 << 40) + b"x",
        b"B\xff\xff\xff\x7f",
        b"\x8b\xff\xff\xff\x7f",
        b"\x95" + struct.pack("<Q", 1 << 63) + b"N",
        b"T\xff\xff\xff\x7f",
    ],
)
def test_a_length_that_is_not_there_takes_no_memory(stream: bytes) -> None:
    tracemalloc.start()
    told = read(stream)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert told.cut and most < 4 << 20


@every_case(
    "stream", [b"\x8b\xff\xff\xff\xff", b"T\xff\xff\xff\xff", b"I" + b"9" * 100_000 + b"\n.", b"L" + b"9" * 5000 + b"L\n."]
)
def test_numbers_beyond_sense_are_no_harm(stream: bytes) -> None:
    told = read(stream)
    assert told.problem is not None or isinstance(told.tree, Opaque)


def test_the_memo_takes_any_place() -> None:
    assert read(b"]r\xff\xff\xff\xffN0j\xff\xff\xff\xffa.").problem is None
    assert read(b"]j\xff\xff\xff\xffa.").problem == "it uses something that it never stored"


def test_long_bytes_and_texts_are_described_and_not_kept() -> None:
    stream = pickle.dumps({"a": b"x" * 5_000_000, "b": "y" * 5_000_000, "c": 1})
    tracemalloc.start()
    source = io.BytesIO(stream)
    told = read_pickle(source)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert told.tree == {"a": Opaque("bytes", (5_000_000,)), "b": Opaque("str", (5_000_000,)), "c": 1}
    assert most < 3 << 20


@every_case(
    "stream", [b"", b".", b"N", b"0.", b"t.", b"R.", b"b.", b"s.", b"Q.", b"\x93.", b"h\0.", b"\x80\x06N.", b"(", b"\x81."]
)
def test_a_stream_that_is_no_pickle_has_a_problem(stream: bytes) -> None:
    told = read(stream)
    assert told.problem is not None and told.tree is None


def test_the_end_in_the_middle_is_the_end() -> None:
    told = read(b"N.N.")
    assert told.problem is None and told.end == 2


def test_a_long_file_of_junk_is_given_up_with_little_memory(tmp_path: Path) -> None:
    assert machine.LIMIT == 16_000_000, "the bound on memory below is a sixteenth of what this limit allows"
    (tmp_path / "junk").write_bytes(b"]" * 20_000_000)
    look = (  # the peak of this program: `ru_maxrss` keeps that of the parent it was forked from
        "import re, sys; from holdfast.checkpoints.pickled import machine; from holdfast.checkpoints.pickles import read_pickle;"
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]);"
        "machine.LIMIT = 1_000_000; before = peak(); problem = read_pickle(open(sys.argv[1], 'rb')).problem;"
        "print(problem, peak() - before, sep='|')"
    )
    done = subprocess.run([sys.executable, "-c", look, str(tmp_path / "junk")], capture_output=True, text=True, check=True)
    problem, kilobytes = done.stdout.split("|")
    assert problem == "it is longer or more nested than a checkpoint ever is" and int(kilobytes) < 600_000 / 16


@every_case("junk", [b"N", b"}", b"(", b"2", b"K\1", b"]\x94", b"X\1\0\0\0a", b"ca\nB\n)R", b"(l(NNe"])
def test_junk_of_any_kind_is_given_up(junk: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "LIMIT", 20_000)
    assert read(b"N" + junk * 30_000).problem == "it is longer or more nested than a checkpoint ever is"


def test_names_without_end_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "LIMIT", machine.LIMIT // 16)
    told = read(b"".join(b"ca%d\nb\n0" % at for at in range(200_000 // 16)))
    assert told.problem == "it is longer or more nested than a checkpoint ever is" and len(told.needs_code) < 200_000 // 16


def test_random_bytes_are_no_harm() -> None:
    dice = random.Random(0)
    for _ in range(1000):
        told = read(dice.randbytes(dice.randrange(1, 200)))
        assert told.problem is not None or told.end > 0


def test_numbers_that_collide_do_not_make_a_dict_slow() -> None:
    same = [(1 << 61) - 1] * 20_000
    keys = b"".join(b"\x8a\x10" + (number * at).to_bytes(16, "little") + b"N" for at, number in enumerate(same, 1))
    told = read(b"}(" + keys + b"u.")
    assert len(told.tree) == 20_000


def test_a_stream_cut_at_any_byte_keeps_what_was_understood() -> None:
    stream = pickle.dumps({"first": [1, 2, {"x": 3}], "second": {"a": "b"}, "third": (1, 2)}, 2)
    seen = 0
    for length in range(len(stream)):
        told = read(stream[:length])
        assert told.cut and told.problem
        seen = max(seen, len(told.tree or ()))
    assert seen >= 2  # the last value had not been put into it yet


def test_tensors_understood_before_the_cut_are_listed() -> None:
    stream = pickle.dumps({"model": {f"w{at}": torch.zeros(2) for at in range(5)}})
    told = read(stream[: stream.index(b"w3")])
    assert told.cut and [info.name for info in told.tensors] == ["model.w0", "model.w1", "model.w2"]


def test_a_path_that_two_tensors_share_gets_a_number() -> None:
    tree = {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}, 1: torch.zeros(1), "1": torch.ones(1)}
    assert [info.name for info in read(pickle.dumps(tree)).tensors] == ["a.b", "a.b (2)", "1", "1 (2)"]


def test_names_hold_nothing_that_a_terminal_obeys() -> None:
    told = read(pickle.dumps({"a\x1b[2J\n": torch.zeros(1), "ü": torch.zeros(1)}))
    assert [info.name for info in told.tensors] == ["a\\x1b[2J\\n", "ü"]


@every_case(
    "arguments",
    [
        *[(0, (-1,), (1,)), (0, (2,), (1, 1)), (0, "ab", (1,)), (1.5, (2,), (1,)), (0, (1 << 70,), (1,)), (True, (2,), (1,))],
        *[(0, ((2,),), (1,)), (0, (1,) * 100, (1,) * 100)],
    ],
)
def test_a_tensor_with_senseless_numbers_is_described_only(arguments: tuple[Any, ...]) -> None:
    class Odd:
        def __reduce__(self) -> tuple[Any, ...]:
            return torch._utils._rebuild_tensor_v2, (torch.FloatStorage(4), *arguments, False, None)

    told = read(pickle.dumps([Odd(), torch.zeros(2)]))
    assert told.tree[0].name == "torch._utils._rebuild_tensor_v2"
    assert [info.name for info in told.tensors if info.name == "1"] == ["1"] and isinstance(told.tree[1], TensorInfo)


def test_calls_in_calls_end_somewhere() -> None:
    inner: Any = b"N"
    for _ in range(2000):
        inner = b"ccopyreg\n__newobj__\n(ccopyreg\n__newobj__\n" + inner + b"tR"
    assert read(inner + b".").problem is None
    call = b"(ctorch._tensor\n_rebuild_from_type_v2\nctorch\nTensor\n"
    assert read(b"ctorch._tensor\n_rebuild_from_type_v2\n" + call * 3000 + b")" + b"Nt" * 3000 + b"R.").refused == []


class Lookups(pickle._Unpickler):  # type: ignore[name-defined,misc]
    """Python's own unpickler, with every name that it looks up written down instead."""

    def __init__(self, stream: bytes) -> None:
        super().__init__(io.BytesIO(stream))
        self.names: list[tuple[str, str]] = []

    def find_class(self, module: str, name: str) -> Any:
        self.names.append((module, name))
        return type("Anything", (), {"__init__": lambda *_: None, "__setstate__": lambda *_: None, "__call__": lambda *_: None})

    def persistent_load(self, pid: Any) -> Any:
        return None


def test_every_name_that_python_s_unpickler_would_look_up_is_seen() -> None:
    """A stream that the two read differently could hide a name."""
    dice, seen = random.Random(6), 0
    calls = [b"cos\nsystem\n(Vx\ntR", b"(Vx\nios\nsystem\n", b"\x8c\2os\x8c\6system\x93)R", b"Vos\nq\1Vsystem\nq\0" + b"0h\0\x93"]
    pieces = [*calls, *(bytes([code]) for code in OPCODES if code != ord("."))]
    good = [pickle.dumps(value, protocol)[:-1] for value in VALUES for protocol in range(6)]
    for _ in range(1500):
        stream = dice.choice(good) + dice.choice(calls) + dice.choice(good)
        for _ in range(dice.randrange(6)):
            at = dice.randrange(len(stream))
            stream = stream[:at] + dice.choice(pieces) + stream[at + dice.randrange(3) :]
        python = Lookups(stream + b".")
        with contextlib.suppress(Exception):
            python.load()
        told = read(stream + b".")
        if ("os", "system") in python.names and not told.cut:
            seen += 1
            assert "os.system" in told.refused, stream
    assert seen > 300


def test_a_source_reads_across_its_pieces() -> None:
    data = bytes(range(256)) * 5000
    source = Source(io.BytesIO(data), 3, 1_000_000)
    assert source.take(300_000) == data[3:300_003] and source.offset == 300_003
    source.skip(600_000)
    assert source.byte() == data[900_003]
    assert isinstance(source.blob(90_000), Blob)
    with pytest.raises(CutShort):
        source.take(20_000)
    with pytest.raises(NotFollowed):
        Source(io.BytesIO(b"x" * 1_000_000)).line()
    assert isinstance(LongText(3), LongText)


class Key:
    """How some trainers name the parts of a checkpoint."""

    def __init__(self, name: str) -> None:
        self.name = name


def test_objects_as_keys_are_called_by_their_names() -> None:
    read_back = read(pickle.dumps({Key("model"): {"weight": 1}, Key("optimizer"): {"lr": 0.1}}))
    assert read_back.tree == {"model": {"weight": 1}, "optimizer": {"lr": 0.1}}


def test_objects_as_keys_that_read_alike_are_all_kept() -> None:
    assert len(read(pickle.dumps({Opaque("one"): 1, Opaque("two"): 2, frozenset({3}): 3})).tree) == 3
