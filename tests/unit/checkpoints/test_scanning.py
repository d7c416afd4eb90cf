"""Every byte is read once: damage and numbers that are not finite are found wherever they lie, whatever happens to the file."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from every_case import every_case

from holdfast.checkpoints import numbers, scanning
from holdfast.checkpoints.contents import Storage
from holdfast.checkpoints.numbers import LAYOUTS
from holdfast.checkpoints.scanning import Scanned, Wanted, joined, scan

CHUNK, PIECE = 1 << 16, 1 << 20  # smaller than they are, so that a test has many of them

FLOATS = [name for name in LAYOUTS if hasattr(torch, name)]
SIGNED = {1: torch.int8, 2: torch.int16}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "CHUNK", CHUNK)
    monkeypatch.setattr(scanning, "PIECE", PIECE)


def as_tensor(dtype: str, values: list[float]) -> torch.Tensor:
    """Values as numbers of a kind; a complex one is made of two of them."""
    kind: torch.dtype = getattr(torch, dtype)
    if kind.is_complex:
        half = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}[kind]
        return torch.tensor(values, dtype=half)
    return torch.tensor(values).to(kind)


def memory_of(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(bytearray(tensor.contiguous().view(torch.uint8).numpy().tobytes()), np.uint8).copy()


def file_of(folder: Path, data: bytes) -> Path:
    path = folder / "data.bin"
    path.write_bytes(data)
    return path


def wanted(path: Path, size: int, dtype: str | None = "float32", *, offset: int = 0, crc32: int | None = None) -> Wanted:
    return Wanted(Storage(path, offset, size, dtype or "int8", crc32), (LAYOUTS[dtype],) if dtype else ())


def only(found: list[Scanned]) -> Scanned:
    assert len(found) == 1
    return found[0]


# --- numbers


@every_case("dtype", FLOATS)
@every_case("value", [float("nan"), float("inf"), float("-inf")])
@every_case("at", [0, 1, 511, 998, 999])
def test_one_number_that_is_not_finite_is_found_and_counted(dtype: str, value: float, at: int) -> None:
    tensor = as_tensor(dtype, [1.0] * 1000)
    assert numbers.is_finite(memory_of(tensor), LAYOUTS[dtype])
    tensor[at] = value
    seen = tensor.double()
    expected = (int(seen.isnan().sum()), int((seen == float("inf")).sum()), int((seen == float("-inf")).sum()))
    assert tuple(numbers.count(memory_of(tensor), LAYOUTS[dtype])) == expected
    assert numbers.is_finite(memory_of(tensor), LAYOUTS[dtype]) == (sum(expected) == 0)


@every_case("dtype", [name for name in FLOATS if LAYOUTS[name].size <= 2 and "complex" not in name])
def test_every_pattern_of_bits_of_a_small_kind_is_judged_as_torch_judges_it(dtype: str) -> None:
    layout = LAYOUTS[dtype]
    bits = torch.arange(256**layout.size).to(SIGNED[layout.size])
    seen = bits.view(getattr(torch, dtype)).double()
    expected = (int(seen.isnan().sum()), int((seen == float("inf")).sum()), int((seen == float("-inf")).sum()))
    assert tuple(numbers.count(memory_of(bits), layout)) == expected
    finite = seen.isfinite()
    assert numbers.is_finite(memory_of(bits[finite]), layout)
    for one in bits[~finite]:
        assert not numbers.is_finite(memory_of(one.view(1)), layout)


@every_case("dtype", ["float32", "float64", "complex64"])
def test_nan_of_either_sign_and_with_any_payload_is_nan(dtype: str) -> None:
    layout = LAYOUTS[dtype]
    kind: Any = {4: np.uint32, 8: np.uint64}[layout.size]
    for bits in (layout.exponent | 1, layout.exponent | layout.fraction, layout.sign | layout.exponent | 1):
        memory = np.array([0, bits, 0], kind).view(np.uint8)
        assert not numbers.is_finite(memory, layout) and numbers.count(memory, layout).nan == 1


@every_case("dtype", ["float32", "float64", "float16", "bfloat16", "complex64"])
def test_huge_numbers_whose_sum_overflows_are_finite(dtype: str) -> None:
    largest = torch.finfo(getattr(torch, dtype)).max
    tensor = torch.full((4096,), largest, dtype=torch.float64).to(
        torch.float32 if dtype == "complex64" else getattr(torch, dtype)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert numbers.is_finite(memory_of(tensor), LAYOUTS[dtype])
        assert numbers.is_finite(memory_of(-tensor), LAYOUTS[dtype])


def test_plus_and_minus_infinity_do_not_cancel_out() -> None:
    tensor = torch.tensor([float("inf"), float("-inf")] * 8)
    assert tuple(numbers.count(memory_of(tensor), LAYOUTS["float32"])) == (0, 8, 8)
    assert not numbers.is_finite(memory_of(tensor), LAYOUTS["float32"])


# --- checksums


def test_the_checksum_of_two_parts_is_that_of_the_whole() -> None:
    noise = random.Random(1)
    for first, second in ((0, 0), (1, 0), (0, 9), (1, 1), (77, 100_000), (65_536, 3)):
        one, two = noise.randbytes(first), noise.randbytes(second)
        assert joined(zlib.crc32(one), zlib.crc32(two), second) == zlib.crc32(one + two)


@every_case("size", [1, 3, CHUNK - 1, CHUNK, CHUNK + 1, PIECE - 1, PIECE, PIECE + 5, 2 * PIECE + CHUNK + 7])
@every_case("workers", [1, 3])
def test_a_storage_of_any_size_gets_its_own_checksum(tmp_path: Path, size: int, workers: int) -> None:
    data = random.Random(size).randbytes(size)
    path = file_of(tmp_path, b"before" + data + b"after")
    found = only(scan([wanted(path, size, None, offset=6, crc32=0)], workers=workers))
    assert (found.crc32, found.read, found.error) == (zlib.crc32(data), size, "")


def test_many_small_storages_beside_each_other_each_get_their_own(tmp_path: Path) -> None:
    noise = random.Random(2)
    parts = [noise.randbytes(noise.choice([0, 1, 7, 64, 1000, 30_000, 70_000])) for _ in range(300)]
    path, at, every = file_of(tmp_path, b"x" * 13 + b"gap".join(parts)), 13, []
    for part in parts:
        every.append(wanted(path, len(part), None, offset=at, crc32=0))
        at += len(part) + 3
    order = list(range(len(parts)))
    noise.shuffle(order)  # a checkpoint names them in any order
    found = scan([every[number] for number in order], workers=2)
    assert [one.crc32 or 0 for one in found] == [zlib.crc32(parts[number]) for number in order]
    assert sum(one.read for one in found) == sum(map(len, parts))


def test_the_checksum_function_is_the_one_that_was_given(tmp_path: Path) -> None:
    from isal.isal_zlib import crc32

    data = random.Random(3).randbytes(PIECE + 12345)
    path = file_of(tmp_path, data)
    assert only(scan([wanted(path, len(data), None, crc32=0)], crc32=crc32)).crc32 == zlib.crc32(data)


AT_THE_END = """
import atexit, sys, zlib
from pathlib import Path
from holdfast.checkpoints import scanning
from holdfast.checkpoints.contents import Storage
scanning.CHUNK = scanning.PIECE = 1 << 16

def look():
    found = scanning.scan([scanning.Wanted(Storage(Path(sys.argv[1]), 0, 1 << 18, "int8", 0), ())], workers=2)
    print(found[0].crc32)

atexit.register(look)
"""


def test_a_checkpoint_is_read_while_python_ends_and_starts_no_thread_any_more(tmp_path: Path) -> None:
    data = random.Random(4).randbytes(1 << 18)
    command = [sys.executable, "-c", AT_THE_END, str(file_of(tmp_path, data))]
    assert int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) == zlib.crc32(data)


# --- where it lies


@every_case("dtype", ["float32", "bfloat16", "float64", "float8_e4m3fn"])
@every_case("value", [float("nan"), float("-inf")])
def test_a_bad_number_around_a_border_between_chunks_and_pieces_is_found(tmp_path: Path, dtype: str, value: float) -> None:
    item = LAYOUTS[dtype].size
    count = (PIECE + 2 * CHUNK) // item + 3
    for byte in (0, CHUNK - item, CHUNK, PIECE - item, PIECE, PIECE + CHUNK - item, count * item - item):
        tensor = torch.zeros(count, dtype=getattr(torch, dtype))
        tensor[byte // item] = value
        path = file_of(tmp_path, b"odd" + memory_of(tensor).tobytes())
        found = only(scan([wanted(path, count * item, dtype, offset=3)], workers=2))
        if dtype == "float8_e4m3fn" and value == float("-inf") and tensor.float().isfinite().all():
            assert not found.bad  # this kind has no infinity: it became its largest number
            continue
        ((begin, end),) = found.bad
        assert begin <= byte < end <= count * item and end - begin <= CHUNK


def test_small_storages_are_looked_at_as_what_they_are(tmp_path: Path) -> None:
    parts = [np.array([1, np.nan], np.float32), np.array([-1, -1], np.int32), np.array([1.0, np.inf]), np.ones(3, np.float32)]
    path = file_of(tmp_path, b"1" + b"".join(part.tobytes() for part in parts))
    at, every = 1, []
    for part in parts:
        every.append(wanted(path, part.nbytes, None if part.dtype.kind == "i" else part.dtype.name, offset=at))
        at += part.nbytes
    assert [bool(one.bad) for one in scan(every)] == [True, False, True, False]


# --- whatever happens


def test_a_file_that_vanished_is_told_and_not_raised(tmp_path: Path) -> None:
    found = only(scan([wanted(tmp_path / "gone.bin", 100)]))
    assert "vanished while it was read" in found.error and found.read == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_told_and_not_raised(tmp_path: Path) -> None:
    path = file_of(tmp_path, b"x" * 100)
    path.chmod(0)
    assert "permission" in only(scan([wanted(path, 100)])).error


def test_a_folder_in_the_place_of_a_file_is_told_and_not_raised(tmp_path: Path) -> None:
    assert "cannot be read" in only(scan([wanted(tmp_path, 100)])).error


def test_a_file_that_is_shorter_than_it_was_is_told_for_the_storages_that_miss_bytes_only(tmp_path: Path) -> None:
    path = file_of(tmp_path, b"\0" * 1000)
    found = scan([wanted(path, 400, crc32=0), wanted(path, 400, offset=400, crc32=0), wanted(path, 400, offset=800, crc32=0)])
    assert [one.error for one in found] == ["", "", "it became shorter while it was read"]
    assert [one.read for one in found] == [400, 400, 0]


def test_a_file_cut_short_while_it_is_read_kills_nothing(tmp_path: Path) -> None:
    size = 4 * PIECE
    path = tmp_path / "data.bin"
    with path.open("wb") as file:
        file.truncate(size)
    calls = []

    def cut(done: int, total: int) -> None:
        calls.append((done, total))
        if len(calls) == 1:
            os.truncate(path, PIECE)

    found = only(scan([wanted(path, size, crc32=0)], progress=cut, workers=1))
    assert found.error == "it became shorter while it was read"
    assert found.read == PIECE


def test_progress_goes_from_nothing_to_everything_in_the_callers_thread(tmp_path: Path) -> None:
    size = 5 * PIECE
    path = tmp_path / "data.bin"
    with path.open("wb") as file:
        file.truncate(size)
    seen: list[tuple[int, int, int]] = []
    scan([wanted(path, size)], progress=lambda done, total: seen.append((done, total, threading.get_ident())), workers=2)
    assert [done for done, _, _ in seen] == [PIECE * (number + 1) for number in range(5)]
    assert {(total, thread) for _, total, thread in seen} == {(size, threading.get_ident())}


def test_an_interrupt_does_not_wait_for_the_rest(tmp_path: Path) -> None:
    size = 400 * PIECE
    path = tmp_path / "data.bin"
    with path.open("wb") as file:
        file.truncate(size)  # a hole that takes no room
    read = []

    def counted(data: memoryview, value: int) -> int:
        read.append(len(data))
        return 0

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scan([wanted(path, size, None, crc32=0)], crc32=counted, progress=stop, workers=2)
    assert sum(read) < size // 2
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("holdfast-scan")]


def test_memory_stays_small_whatever_the_size(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "data.bin"
    with path.open("wb") as file:
        file.truncate(8 * PIECE)
    tracemalloc.start()
    scan([wanted(path, 8 * PIECE)], workers=4)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 * CHUNK


def test_nothing_to_read_is_no_trouble(tmp_path: Path) -> None:
    assert scan([]) == []
    assert scan([wanted(tmp_path / "missing", 0)]) == [Scanned()]
