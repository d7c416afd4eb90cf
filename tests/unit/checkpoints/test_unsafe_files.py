"""Files that run a program when they are loaded: here nothing runs, the name is told, and the good tensors are still listed.

Each payload makes a file (`touch`) if it runs. That the payloads work is shown once, by loading them as people do.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import io
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dangerous_names import MODULES, NAMES
from every_case import every_case
from torch import nn

from holdfast.checkpoints import names as pickled_names
from holdfast.checkpoints.contents import Contents
from holdfast.checkpoints.formats.legacy_file import open_legacy
from holdfast.checkpoints.formats.zip_file import open_zip
from holdfast.checkpoints.harmless import PLAIN
from holdfast.checkpoints.verify import verify

OLD = {"_use_new_zipfile_serialization": False}


class Call:
    """Pickled as a call of anything."""

    def __init__(self, function: Callable[..., Any], *given: Any) -> None:
        self.function, self.given = function, given

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.function, self.given


CALLS: dict[str, tuple[Callable[[str], Call], str]] = {
    "os.system": (lambda marker: Call(os.system, f"touch {marker}"), "posix.system"),
    "subprocess": (lambda marker: Call(subprocess.check_call, ["touch", marker]), "subprocess.check_call"),
    "Popen": (lambda marker: Call(subprocess.Popen, ["touch", marker]), "subprocess.Popen"),
    "eval": (lambda marker: Call(eval, f"open({marker!r}, 'w')"), "builtins.eval"),
    "exec": (lambda marker: Call(exec, f"open({marker!r}, 'w')"), "builtins.exec"),
    "open": (lambda marker: Call(open, marker, "w"), "io.open"),
    "pathlib": (lambda marker: Call(getattr, Path(marker), "touch"), "builtins.getattr"),
    "pickle in a pickle": (lambda marker: Call(pickle.loads, pickle.dumps(Call(os.system, f"touch {marker}"))), "pickle.loads"),
    "map": (lambda marker: Call(list, Call(map, os.system, [f"touch {marker}"])), "builtins.map"),
}


def good() -> dict[str, Any]:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "config": {"lr": 0.1, "tags": ["a"]}}


GOOD = ["model.weight", "model.bias", "optimizer.state.0.momentum_buffer", "optimizer.state.1.momentum_buffer"]


def hide(tree: dict[str, Any], place: str, call: Call) -> Any:
    if place == "first":
        return {"a": call, **tree}
    if place == "root":
        return [tree, call]
    if place == "optimizer":
        tree["optimizer"]["state"][0]["exp_avg"] = call
    elif place == "config":
        tree["config"]["tags"].append({"deep": [(call,)]})
    elif place == "ordered":
        tree["config"] = collections.OrderedDict(x=collections.OrderedDict(y=call))
    elif place == "key":
        tree["config"][(1, call)] = 1
    elif place == "state of an object":
        module = nn.Linear(1, 1)
        module.extra = {"hook": call}  # type: ignore[assignment]
        tree["config"]["module"] = module
    return tree


PLACES = ["first", "root", "optimizer", "config", "ordered", "key", "state of an object"]


def judge(contents: Contents, name: str, marker: Path) -> None:
    assert contents.state == "unsafe", contents.troubles
    assert name in [refused.removeprefix("_") for refused in contents.refused]
    told = [trouble for trouble in contents.troubles if trouble.state == "unsafe"]
    assert len(told) == 1 and (name in told[0].text or len(contents.refused) > 3) and "weights_only=False" in told[0].fix
    assert not marker.exists()


@every_case("protocol", [2, 4, 5])
@every_case("form", ["zip", "legacy"])
@every_case("place", PLACES)
def test_a_program_hidden_in_an_otherwise_good_file_is_told_and_never_run(
    form: str, place: str, protocol: int, tmp_path: Path
) -> None:
    path, marker = tmp_path / "a.pt", tmp_path / "ran"
    tree = hide(good(), place, Call(os.system, f"touch {marker}"))
    torch.save(tree, path, pickle_protocol=protocol, **(OLD if form == "legacy" else {}))
    contents = open_zip(path) if form == "zip" else open_legacy(path)
    judge(contents, "posix.system", marker)
    names = [info.name.removeprefix("0.") for info in contents.tensors]
    assert [name for name in names if name in GOOD] == GOOD
    torch.load(path, weights_only=False)
    assert marker.exists()  # the payload was one


@every_case("protocol", range(6))
@every_case("name", CALLS)
def test_each_kind_of_call_is_told_in_a_bare_pickle_of_every_protocol(name: str, protocol: int, tmp_path: Path) -> None:
    path, marker = tmp_path / "a.pkl", tmp_path / "ran"
    call, wanted = CALLS[name]
    path.write_bytes(pickle.dumps({"good": [1, 2], "bad": call(str(marker))}, protocol))
    contents = open_legacy(path)
    judge(contents, wanted, marker)
    assert contents.tree["good"] == [1, 2]
    if name not in ("pathlib", "map", "Popen"):  # these need one more step
        pickle.loads(path.read_bytes())
        assert marker.exists()


def text(words: str) -> bytes:
    return b"\x8c" + bytes([len(words)]) + words.encode()


def stack_name(module: str, name: str) -> bytes:
    return text(module) + text(name) + b"\x93"


SYSTEM = b"cos\nsystem\n"
TOUCH = b"Vtouch MARKER\n"
HAND_MADE: dict[str, tuple[bytes, str]] = {
    "GLOBAL": (SYSTEM + b"(" + TOUCH + b"tR.", "os.system"),
    "GLOBAL and no call": (SYSTEM + b".", "os.system"),
    "INST": (b"(" + TOUCH + b"ios\nsystem\n.", "os.system"),
    "OBJ": (b"(" + SYSTEM + TOUCH + b"o.", "os.system"),
    "STACK_GLOBAL": (b"\x80\4" + stack_name("os", "system") + TOUCH + b"\x85R.", "os.system"),
    "STACK_GLOBAL of the memo": (
        b"\x80\4" + text("system") + b"\x94" + text("os") + b"\x94" + b"00h\1h\0\x93" + TOUCH + b"\x85R.",
        "os.system",
    ),
    "dotted name": (
        b"\x80\4" + stack_name("torch.serialization", "os.system") + TOUCH + b"\x85R.",
        "torch.serialization.os.system",
    ),
    "Python 2": (b"c__builtin__\neval\n(Vopen('MARKER', 'w')\ntR.", "builtins.eval"),
    "Python 2's other names": (b"ccommands\ngetoutput\n(" + TOUCH + b"tR.", "subprocess.getoutput"),
    "NEWOBJ": (b"\x80\2csubprocess\nPopen\n(Vtouch\nVMARKER\nl\x85\x81.", "subprocess.Popen"),
    "result thrown away": (b"(" + SYSTEM + b"(" + TOUCH + b"tR1]Vgood\na.", "os.system"),
    "result popped": (SYSTEM + b"(" + TOUCH + b"tR0]Vgood\na.", "os.system"),
    "then an error": (SYSTEM + b"(" + TOUCH + b"tR\xff", "os.system"),
    "then cut": (SYSTEM + b"(" + TOUCH + b"tR", "os.system"),
    "partial": (b"cfunctools\npartial\n(" + SYSTEM + TOUCH + b"tR)R.", "os.system"),
    "state of a partial": (
        b"cfunctools\npartial\n(cmath\nsqrt\ntR(" + SYSTEM + b"(" + TOUCH + b"t}Ntb)R.",
        "os.system",
    ),
    "tensor of a type": (
        b"ctorch._tensor\n_rebuild_from_type_v2\n(" + SYSTEM + b"ctorch\nTensor\n(" + TOUCH + b"t}tR.",
        "os.system",
    ),
    "numpy's generators": (
        b"cnumpy.random._pickle\n__generator_ctor\n(" + TOUCH + SYSTEM + b"tR.",
        "os.system",
    ),
    "old way of making": (b"ccopy_reg\n_reconstructor\n(csubprocess\nPopen\nc__builtin__\nobject\nNtR.", "subprocess.Popen"),
    "getattr of a function": (
        b"c__builtin__\ngetattr\n(ctorch.nn.functional\nrelu\nV__globals__\ntR.",
        "builtins.getattr",
    ),
    "getattr as a value": (b"(lc__builtin__\ngetattr\na.", "builtins.getattr"),
    "getattr of a result": (b"c__builtin__\ngetattr\n(c__builtin__\nlist\n)RVappend\ntR.", "builtins.getattr"),
    "getattr that names": (
        b"c__builtin__\ngetattr\n(ctorch.nn.modules.linear\nLinear\nVforward\ntR)R.",
        "torch.nn.modules.linear.Linear.forward",
    ),
    "call of a result": (b"cmypackage\nThing\n)R)R.", "a call of what mypackage.Thing gives"),
    "item of something": (b"coperator\ngetitem\n(cmypackage\ntable\nVrun\ntR.", "operator.getitem"),
    "default of a dict": (
        b"coperator\ngetitem\n(ccollections\ndefaultdict\n(cmypackage\nrun\ntRVx\ntR.",
        "operator.getitem",
    ),
    "class that is changed": (
        b"ctorch.nn.parameter\nParameter\n(N}V__setstate__\ncmath\nsqrt\nstb.",
        "a change of torch.nn.parameter.Parameter",
    ),
    "extension": (b"\x80\2\x82\7)R.", "extension code 7"),
    "name put together": (
        b"\x80\4c_codecs\nencode\n(Vos\nVlatin1\ntR" + text("system") + b"\x93.",
        "a name that is put together while loading",
    ),
    "function of another package": (b"cmypackage\nrun\n)R.", "mypackage.run"),
    "function by way of a partial": (b"cfunctools\npartial\n(cmypackage\nrun\ntR)R.", "mypackage.run"),
    "module of another package": (b"\x80\4" + stack_name("mypackage", "os.system") + b")R.", "mypackage.os.system"),
    "class handed on": (b"cmypackage\nPopen\n(Vls\ntR.", "mypackage.Popen"),
    "inner names": (
        b"\x80\4" + stack_name("mypackage", "Thing.__init__.__globals__") + b".",
        "mypackage.Thing.__init__.__globals__",
    ),
    "letters that look alike": ("c\u043es\nsystem\n)R.".encode(), "\\u043es.system"),
    "empty name": (b"\x80\4" + stack_name("os", "") + b".", "os."),
    "name with a line end": (b"\x80\4" + stack_name("a\x1b[2J", "b\nc") + b".", "a\\x1b[2J.b\\nc"),
    "escaped text": (b"\x80\4V\\u006f\\u0073\nV\\u0073ystem\n\x93" + TOUCH + b"\x85R.", "os.system"),
    "quoted text": (b"\x80\4S'\\x6fs'\nS'system'\n\x93" + TOUCH + b"\x85R.", "os.system"),
    "torch's graphs": (b"ctorch.quantization.fx.prepare\nGraphModule\n)R.", "torch.quantization.fx.prepare.GraphModule"),
    "another case": (b"cOS\nsystem\n)R.", "OS.system"),
    "torch.load": (b"ctorch.serialization\nload\n(Vx\ntR.", "torch.serialization.load"),
    "torch.hub": (b"ctorch.hub\nload\n)R.", "torch.hub.load"),
    "TorchScript": (b"ctorch.jit\nload\n(Vx\ntR.", "torch.jit.load"),
    "dynamo": (b"ctorch._dynamo.guards\nGuardBuilder\n)R.", "torch._dynamo.guards.GuardBuilder"),
    "torch's processes": (
        b"ctorch.distributed.checkpoint._async_process_executor\n_AsyncCheckpointProcess\n(NtR.",
        "torch.distributed.checkpoint._async_process_executor._AsyncCheckpointProcess",
    ),
    "numpy": (b"cnumpy.testing._private.utils\nrunstring\n(Vx\n}tR.", "numpy.testing._private.utils.runstring"),
    "numpy's ufuncs": (b"cnumpy.core\n_ufunc_reconstruct\n(Vos\nVsystem\ntR.", "numpy.core._ufunc_reconstruct"),
    "FORTRAN": (b"cnumpy.f2py.crackfortran\ngetlincoef\n(Vx\n}tR.", "numpy.f2py.crackfortran.getlincoef"),
    "package manager": (b"cpip\nmain\n(ltR.", "pip.main"),
    "debugger": (b"cbdb\nBdb\n)R.", "bdb.Bdb"),
    "profiler": (b"cprofile\nProfile\n)R.", "profile.Profile"),
    "log to a file": (b"clogging\nFileHandler\n(VMARKER\ntR.", "logging.FileHandler"),
    "evaluates text": (b"csympy\nAdd\n(Vx\ntR.", "sympy.Add"),
}


@every_case("name", HAND_MADE)
def test_hand_made_instructions_are_seen_through(name: str, tmp_path: Path) -> None:
    stream, wanted = HAND_MADE[name]
    path, marker = tmp_path / "a.pkl", tmp_path / "ran"
    path.write_bytes(stream.replace(b"MARKER", str(marker).encode()))
    judge(open_legacy(path), wanted, marker)


@every_case(
    "name",
    [
        *("GLOBAL", "INST", "OBJ", "STACK_GLOBAL", "STACK_GLOBAL of the memo", "dotted name", "Python 2", "partial"),
        *("tensor of a type", "state of a partial", "numpy's generators", "escaped text", "quoted text", "result popped"),
    ],
)
def test_the_hand_made_instructions_do_run_when_they_are_loaded(name: str, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    with contextlib.suppress(AttributeError, TypeError, ValueError):  # what a program leaves is no tensor
        pickle.loads(HAND_MADE[name][0].replace(b"MARKER", str(marker).encode()))
    assert marker.exists()


def zip_of(path: Path, records: dict[str, bytes], *, packed: bool = False) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        for name, data in records.items():
            archive.writestr(name, data)


PAYLOAD = SYSTEM + b"(" + TOUCH + b"tR."


@every_case("packed", [False, True])
@every_case("name", ["a/data.pkl", "b/data.pkl", "a/constants.pkl", "a/extra/other.pkl", "data.pkl", "a/DATA.pkl"])
def test_every_pickle_of_an_archive_is_judged(name: str, packed: bool, tmp_path: Path) -> None:
    path, marker = tmp_path / "a.pt", tmp_path / "ran"
    records = {"a/version": b"3\n", "a/data.pkl": pickle.dumps({"x": 1}, 2)}
    zip_of(path, {**records, name: PAYLOAD.replace(b"MARKER", str(marker).encode())}, packed=packed)
    contents = open_zip(path)
    judge(contents, "os.system", marker)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@every_case("first", [True, False])
def test_two_records_of_one_name_are_both_judged_and_told(first: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    pickles = [PAYLOAD, pickle.dumps({"x": 1}, 2)]
    with zipfile.ZipFile(path, "w") as archive:
        for data in pickles if first else reversed(pickles):
            archive.writestr("a/data.pkl", data)
    contents = open_zip(path)
    judge(contents, "os.system", tmp_path / "ran")
    assert any("two records with the same name" in trouble.text for trouble in contents.troubles)


def test_a_pickle_in_capital_letters_is_the_one_that_torch_loads(tmp_path: Path) -> None:
    path, marker = tmp_path / "a.pt", tmp_path / "ran"
    zip_of(path, {"a/version": b"3\n", "a/DATA.PKL": PAYLOAD.replace(b"MARKER", str(marker).encode())})
    judge(open_zip(path), "os.system", marker)
    torch.load(path, weights_only=False)
    assert marker.exists()


def test_a_tar_archive_that_is_a_harmless_pickle_too_is_not_called_clean(tmp_path: Path) -> None:
    """Torch tries tar first, and loads the pickles inside."""
    path, marker, buffer = tmp_path / "a.pt", tmp_path / "ran", io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("x"))
        pickles = {"storages": pickle.dumps(0) + pickle.dumps([]), "tensors": pickle.dumps(0)}
        for name, data in {**pickles, "pickle": PAYLOAD.replace(b"MARKER", str(marker).encode())}.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    raw = bytearray(buffer.getvalue())
    raw[:100] = pickle.dumps({"epoch": 3}, 2).ljust(100, b"\0")
    raw[148:156], raw[257:265] = b" " * 8, bytes(8)  # an old header, which has no magic word
    raw[148:156] = b"%06o\0 " % sum(raw[:512])
    path.write_bytes(bytes(raw))
    assert open_legacy(path).state == "unreadable" and not marker.exists()
    torch.load(path, weights_only=False)
    assert marker.exists()


@every_case("part", range(5))
def test_each_of_the_five_pickles_of_the_older_form_is_judged(part: int, tmp_path: Path) -> None:
    path, marker = tmp_path / "a.pt", tmp_path / "ran"
    parts = [pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, {"x": 1}, [])]
    parts[part] = PAYLOAD.replace(b"MARKER", str(marker).encode())
    path.write_bytes(b"".join(parts))
    judge(open_legacy(path), "os.system", marker)


def test_a_storage_inside_a_pickle_that_is_a_program_instead_is_told(tmp_path: Path) -> None:
    path, marker = tmp_path / "a.pkl", tmp_path / "ran"
    inner = PAYLOAD.replace(b"MARKER", str(marker).encode())
    path.write_bytes(pickle.dumps({"x": Call(torch.storage._load_from_bytes, inner), "y": 1}))
    contents = open_legacy(path)
    judge(contents, "os.system", marker)
    assert "torch.storage._load_from_bytes" in contents.refused and contents.tree["y"] == 1
    buffer = io.BytesIO()
    torch.save(Call(os.system, f"touch {marker}"), buffer)  # the newer form inside
    path.write_bytes(pickle.dumps(Call(torch.storage._load_from_bytes, buffer.getvalue())))
    assert open_legacy(path).refused == ["torch.storage._load_from_bytes"] and not marker.exists()


def test_streams_in_streams_end_somewhere(tmp_path: Path) -> None:
    inner = b"N."
    for _ in range(50):
        inner = pickle.dumps(Call(torch.storage._load_from_bytes, inner))
    (tmp_path / "a.pkl").write_bytes(inner)
    assert open_legacy(tmp_path / "a.pkl").state == "unsafe"


def test_what_stands_behind_the_end_is_said_but_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"x": 1}) + PAYLOAD)
    contents = open_legacy(tmp_path / "a.pkl")
    assert contents.tree == {"x": 1} and f"{len(PAYLOAD)} bytes follow" in contents.notes[0]


def test_models_of_other_packages_are_no_alarm(tmp_path: Path) -> None:
    model = nn.TransformerEncoderLayer(4, 2, activation=torch.nn.functional.gelu)
    handle = model.register_forward_hook(torch.nn.functional.relu)
    torch.save({"model": model, "schedule": torch.optim.lr_scheduler.StepLR, "handle": handle.id}, tmp_path / "a.pt")
    contents = open_zip(tmp_path / "a.pt")
    assert contents.state == "clean" and contents.refused == []
    assert "torch.nn.modules.transformer.TransformerEncoderLayer" in contents.needs_code


def test_a_file_cut_behind_its_program_is_still_unsafe(tmp_path: Path) -> None:
    torch.save({"a": Call(os.system, "touch x"), "b": torch.zeros(100)}, tmp_path / "a.pt")
    data = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "a.pt").write_bytes(data[: len(data) // 2])
    contents = open_zip(tmp_path / "a.pt")
    assert contents.state == "unsafe" and {trouble.state for trouble in contents.troubles} >= {"torn", "unsafe"}


def test_an_archive_with_its_pickle_hidden_by_a_flag_is_not_clean(tmp_path: Path) -> None:
    """Readers that trust the flag "encrypted" do not look; torch's own may."""
    path = tmp_path / "a.pt"
    zip_of(path, {"a/data.pkl": PAYLOAD})
    data = bytearray(path.read_bytes())
    at = data.find(b"PK\1\2")
    data[at + 8 : at + 10] = struct.pack("<H", 1)
    path.write_bytes(bytes(data))
    contents = open_zip(path)
    assert contents.state == "unsafe" and contents.refused == ["os.system"]


def all_public(module: str) -> list[str]:
    """What a module of Python holds; of others, a function and a class that it may hold."""
    with contextlib.suppress(ImportError):
        if module.partition(".")[0] in sys.stdlib_module_names:
            return ["anything", *(name for name in dir(importlib.import_module(module)) if name != "__builtins__")]
    return ["anything", "Anything"]


def judged(full: str) -> str:
    module, _, name = full.partition(":")
    return pickled_names.judge(*pickled_names.today(module, name), "called")


def test_every_name_that_public_scanners_call_dangerous_is_unsafe(tmp_path: Path) -> None:
    path, listed = tmp_path / "a.pkl", {f"{module}:{name}" for module, names, _ in PLAIN for name in names.split()}
    wide = {f"{module}:{name}" for module in MODULES for name in all_public(module)}
    harmless = {name.replace("__builtin__:", "builtins:") for name in wide} & listed
    modules = {name.partition(":")[0] for name in harmless}  # `builtins.list` is in a module that they refuse as a whole
    assert modules == {"_operator", "builtins", "functools", "logging", "operator", "types", "uuid"}
    clean = [full for full in sorted(wide - harmless) if judged(full) != "refused"]
    for full in NAMES:
        module, _, name = full.partition(":")
        path.write_bytes(b"\x80\2c%b\n%b\n(Vx\ntR." % (module.encode(), name.encode()))
        if verify(open_legacy(path)).state != "unsafe":
            clean.append(full)
    assert clean == [] and len(NAMES) > 50 and len(wide) > 2000


def test_a_call_of_an_unknown_package_is_unsafe_though_its_name_looks_like_a_class(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(b"\x80\2cfire.core\nFire\n(Vprint(1)\ntR.")
    contents = open_legacy(path)
    assert contents.refused == ["fire.core.Fire"] and verify(contents).state == "unsafe"


def test_a_model_that_holds_a_partial_is_no_alarm_and_one_of_something_made_is(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"norm": functools.partial(nn.LayerNorm, eps=1e-6), "weight": torch.zeros(1)}, path)
    assert open_zip(path).refused == []
    path.write_bytes(b"\x80\2cfunctools\npartial\n(cmy\nThing\n)\x81tR.")
    assert open_legacy(path).refused == ["functools.partial"]
    path.write_bytes(b"\x80\2cfunctools\npartial\n(cmath\nsqrt\ntR(cmy\nThing\n)\x81)}Ntb.")
    assert open_legacy(path).refused == ["functools.partial"]
