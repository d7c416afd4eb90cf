"""Files that were made to hang, to crash or to fill the memory of whoever looks at them."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import torch
from holdfast_run import typed

from holdfast.checkpoints.formats.open import open_checkpoint


def index(path: Path, *names: str) -> Path:
    path.write_text(json.dumps({"weight_map": {f"weight {number}": name for number, name in enumerate(names)}}))
    return path


def test_indexes_that_name_themselves_or_each_other_are_told_at_once(tmp_path: Path) -> None:
    itself = index(tmp_path / "itself.safetensors.index.json", "itself.safetensors.index.json")
    one = index(tmp_path / "one.safetensors.index.json", "other.safetensors.index.json")
    index(tmp_path / "other.safetensors.index.json", "one.safetensors.index.json", "itself.safetensors.index.json")
    for path in (itself, one):
        contents = open_checkpoint(path)
        assert contents.state == "unreadable" and "is an index of other files" in contents.troubles[0].text


def test_indexes_that_lead_to_ever_more_indexes_are_not_followed(tmp_path: Path) -> None:
    for level in range(12):
        below = [f"{level + 1}-{number}.safetensors.index.json" for number in range(10)]
        for number in range(10):
            index(tmp_path / f"{level}-{number}.safetensors.index.json", *below)
    assert open_checkpoint(tmp_path / "0-0.safetensors.index.json").state == "unreadable"


def test_one_hostile_file_is_a_row_and_not_the_end_of_the_listing(tmp_path: Path) -> None:
    tensor = {"dtype": "F32", "shape": [2**62 - 1] * 300, "data_offsets": [0, 4]}
    header = json.dumps({"huge": tensor}).encode()
    (tmp_path / "hostile.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 4)
    fine = json.dumps({"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "fine.safetensors").write_bytes(struct.pack("<Q", len(fine)) + fine + b"\0" * 4)
    done = typed("checkpoints", "list", "--json", str(tmp_path))
    states = {Path(row["path"]).name: row["state"] for row in json.loads(done.stdout)}
    assert states == {"hostile.safetensors": "unreadable", "fine.safetensors": "clean"}, done


PEAK = """
import re, sys
from pathlib import Path
from holdfast.checkpoints.formats.open import open_checkpoint
from holdfast.checkpoints.verify import verify
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
small, *paths = map(Path, sys.argv[1:])
verify(open_checkpoint(small))  # what is imported and set up once
before = peak()
for path in paths:
    verdict = verify(open_checkpoint(path))
    print(path.name, (peak() - before) // 1024, verdict.state, *(one.text for one in verdict.troubles), flush=True)
"""


def megabytes(*paths: Path) -> dict[str, int]:
    """The most memory that a look at these files has taken after each of them, in a process of its own."""
    small = paths[0].with_name("small.pt")
    torch.save({"weight": torch.zeros(2)}, small)
    command = [sys.executable, "-c", PEAK, str(small), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {line.split(" ")[0]: int(line.split(" ")[1]) for line in done.stdout.splitlines()}


LIST = b"](" + b"K\1" * 100_000 + b"eq\0"
ROW = b"(" + b"K\1" * 100_000 + b"tq\0"
TEXT = b"X" + struct.pack("<I", 60_000) + b"a" * 60_000 + b"q\0"
COPIES = {
    **{name: (LIST, b"cbuiltins\n%b\n(h\0tR" % name.encode()) for name in ("list", "tuple", "set", "frozenset")},
    **{name: (LIST, b"ccollections\n%b\n(h\0tR" % name.encode()) for name in ("deque", "OrderedDict", "Counter")},
    "Size": (LIST, b"ctorch\nSize\n(h\0tR"),
    "newobj": (ROW, b"ccopyreg\n__newobj_ex__\n(cmy\nThing\nh\0}tR"),
    "encode": (TEXT, b"c_codecs\nencode\n(h\0Vlatin1\ntR"),
    "bytearray": (TEXT, b"cbuiltins\nbytearray\n(h\0Vutf-8\ntR"),
    "path": (TEXT, b"cpathlib\nPosixPath\n(" + b"h\0" * 8 + b"tR"),
    "getattr": (TEXT, b"cbuiltins\ngetattr\n(cmy\nThing\nh\0tR"),
    "number": (TEXT, b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(VU15000\ntRh\0tR"),
}


def test_copies_of_what_is_memoised_do_not_fill_the_memory(tmp_path: Path) -> None:
    for name, (memoised, call) in COPIES.items():
        (tmp_path / f"{name}.pkl").write_bytes(b"\x80\2" + memoised + b"0(" + call * 2000 + b"l.")
    taken = megabytes(*(tmp_path / f"{name}.pkl" for name in COPIES))
    assert len(taken) == len(COPIES) and max(taken.values()) < 24, taken


def test_many_runs_of_bytes_and_text_are_not_all_held(tmp_path: Path) -> None:
    paths = []
    for size in (1 << 12, 60_000, 1 << 20):
        for code in (b"B", b"X", b"T"):
            run = code + struct.pack("<I", size) + b"x" * size
            paths.append(tmp_path / f"{code.decode()}{size}.pkl")
            paths[-1].write_bytes(b"\x80\2(" + run * (40_000_000 // size) + b"l.")
    taken = megabytes(*paths)
    assert len(taken) == len(paths) and max(taken.values()) < 24, taken


TENSOR = b'{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
HEADERS = {
    "objects": b'{"a":[' + b"{}," * 9_000_000 + b"{}]}",
    "lists": b'{"a":' + b"[[]," * 7_000_000 + b"[]" + b"]" * 7_000_000 + b"}",
    "shape": b'{"a":{"dtype":"F32","shape":[' + b"1," * 14_000_000 + b'1],"data_offsets":[0,4]}}',
    "notes": b'{"__metadata__":{' + b",".join(b'"%d":""' % number for number in range(2_400_000)) + b"}}",
    "tensors": b"{" + b",".join(b'"%d":%b' % (number, TENSOR) for number in range(500_000)) + b"}",
    "long": b'{"a":' + b" " * 90_000_000 + TENSOR + b"}",
}


def test_a_header_that_would_fill_the_memory_is_refused_before_it_does(tmp_path: Path) -> None:
    for name, header in HEADERS.items():
        (tmp_path / f"{name}.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
        contents = open_checkpoint(tmp_path / f"{name}.safetensors")
        assert contents.state == "unreadable" and contents.tensors == [], name
        assert "values" in contents.troubles[0].text or "250,000 tensors" in contents.troubles[0].text
    taken = megabytes(*(tmp_path / f"{name}.safetensors" for name in HEADERS))
    assert len(taken) == len(HEADERS) and max(taken.values()) < 64, taken


def test_a_header_of_many_tensors_is_read_in_a_bounded_amount_of_memory(tmp_path: Path) -> None:
    header = b"{" + b",".join(b'"%d":%b' % (number, TENSOR) for number in range(60_000)) + b"}"
    (tmp_path / "many.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert len(open_checkpoint(tmp_path / "many.safetensors").tensors) == 60_000
    assert 15 < megabytes(tmp_path / "many.safetensors")["many.safetensors"] < 90
