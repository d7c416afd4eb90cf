"""Verify a checkpoint: every byte is read once, compared with the checksums that the format has, and looked at for NaN and Inf.

    verify(open_checkpoint(path)) -> Verdict

What must be finite: weights, averaged weights, optimizer state and running statistics, as tensors or as arrays of numpy. A
buffer that holds -Inf on purpose, such as an attention mask, is a note; so is what a trainer keeps beside them (`best_score` of a
callback begins as Inf).
"""

from __future__ import annotations

import math
import re
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.checkpoints.contents import Contents, FileInfo, State, Storage, TensorInfo, Trouble, worst
from holdfast.checkpoints.formats.files import OLDER, few
from holdfast.checkpoints.names import ITEM_SIZES
from holdfast.checkpoints.numbers import LAYOUTS, Counts, Layout, bits_of, count_bits, only_zero_one_or_minus_infinity
from holdfast.checkpoints.parts import Role, arrays_in, is_kept_beside, parts_of, tensors_in
from holdfast.checkpoints.scanning import Crc32, Progress, Scanned, Wanted, scan

_AT_ONCE = 4 << 20  # bytes
Range = tuple[int, int]


def count_in(tensor: TensorInfo, storage: Storage, ranges: Sequence[Range]) -> Counts:
    """How many numbers of a tensor are not finite; only the given bytes of its storage are looked at."""
    layout, total = LAYOUTS[tensor.dtype], Counts()
    begin, end = tensor.span
    picked = None if is_dense(tensor) else _Picked(tensor)
    for low, high in ranges:
        for at, bits in _bits(storage, max(low, begin), min(high, end), layout):
            own = bits if picked is None else picked.of(bits, at, layout)
            total = total.plus(count_bits(own, layout))
    return total if picked is None else Counts(*(number * picked.times for number in total))


def is_mask(tensor: TensorInfo, storage: Storage) -> bool:
    """Whether a tensor holds nothing but 0, 1 and -Inf."""
    layout = LAYOUTS[tensor.dtype]
    picked = None if is_dense(tensor) else _Picked(tensor)
    for at, bits in _bits(storage, *tensor.span, layout):
        if not only_zero_one_or_minus_infinity(bits if picked is None else picked.of(bits, at, layout, every=True), layout):
            return False
    return True


def is_dense(tensor: TensorInfo) -> bool:
    """Whether a tensor fills the bytes that it lies in, each once, in whatever order."""
    if tensor.stride is None:
        return True
    expected = 1
    for step, length in sorted((step, length) for step, length in zip(tensor.stride, tensor.shape, strict=True) if length != 1):
        if step != expected:
            return False
        expected *= length
    return True


class _Picked:
    """Which numbers of a storage belong to a tensor that is a part of a larger one: a slice, or one number many times."""

    def __init__(self, tensor: TensorInfo) -> None:
        pairs = [(step, length) for step, length in zip(tensor.stride or (), tensor.shape, strict=True) if length != 1]
        self._steps = sorted(((step, length) for step, length in pairs if step), reverse=True)
        self._first, self._size = tensor.offset, ITEM_SIZES[tensor.dtype]
        self.times = math.prod(length for step, length in pairs if not step)

    def of(self, bits: npt.NDArray[Any], at: int, layout: Layout, *, every: bool = False) -> npt.NDArray[Any]:
        """Those that belong to it, of numbers that begin at a byte of the storage; without `every` those that matter only."""
        exponent = bits.dtype.type(layout.exponent)
        suspect = np.arange(bits.size) if every or layout.only is not None else np.flatnonzero((bits & exponent) == exponent)
        rest = (at + suspect * layout.size) // self._size - self._first
        mine = rest >= 0
        for step, length in self._steps:
            index = np.minimum(rest // step, length - 1)
            rest = rest - index * step
        chosen: npt.NDArray[Any] = bits[suspect[mine & (rest == 0)]]
        return chosen


def _bits(storage: Storage, begin: int, end: int, layout: Layout) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """The numbers between two bytes of a storage, a few megabytes at a time; what cannot be read any more is left out."""
    end = min(end, storage.size)
    begin += -begin % layout.size if begin % layout.size else 0
    for at in range(begin, end, _AT_ONCE):
        try:
            memory = np.frombuffer(storage.read(at, min(_AT_ONCE, end - at)), np.uint8)
        except OSError:
            return
        yield at, bits_of(memory[: memory.size - memory.size % layout.size], layout)


_MUST_BE_FINITE = ("weights", "optimizer", "ema")
_UNSET = re.compile(r"(^|[._])(min_val|max_val)$")  # an observer for quantisation that has seen nothing yet
_MASK = re.compile(r"mask|causal|tril|triu", re.IGNORECASE)
_BOUND = re.compile(r"(^|[._])(upper|lower)_bound$")  # of a constraint, as GPyTorch has them
_MASKED = 0.05  # share of -Inf that a mask has at least
_AGAIN = "verify it again when nothing writes to it any more"
_COPY = "copy it again from where it came from; if this is where it was saved, use an older one and check the disk"
_BESIDE = "stored beside the weights; nothing is computed from it"
_NO_TENSOR = "name the file or the folder that holds the weights"


@dataclass(frozen=True, slots=True)
class BadTensor:
    """A tensor with numbers that are not finite."""

    name: str
    nan: int
    inf: int
    count: int  # numbers in all


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a checkpoint is worth. `bad` are the tensors that must be finite and are not."""

    path: Path
    state: State
    troubles: list[Trouble] = field(default_factory=list)
    bad: list[BadTensor] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tensors: int = 0
    bytes_read: int = 0
    checked: bool = False  # checksums were compared, of all bytes that were read
    seconds: float = 0.0

    def as_row(self) -> dict[str, Any]:
        """For --json."""
        return {
            "path": str(self.path),
            "state": self.state,
            "troubles": [
                {"state": one.state, "words": one.text, "fix": one.fix, "where": one.where or None} for one in self.troubles
            ],
            "bad": [asdict(tensor) for tensor in self.bad],
            "notes": self.notes,
            "tensors": self.tensors,
            "bytes_read": self.bytes_read,
            "checked": self.checked,
            "seconds": round(self.seconds, 4),
        }


def verify(
    contents: Contents, *, crc32: Crc32 = zlib.crc32, progress: Progress | None = None, must_hold_tensors: bool = False
) -> Verdict:
    """Read all of a checkpoint that was opened, and judge it. Never raises for what is in the files or happens to them.

    With `must_hold_tensors` a file without any is not a clean checkpoint; without it, a script may keep its counters in one.
    """
    started = time.perf_counter()
    looking = _Looking(contents)
    scanned = scan(looking.wanted(), crc32=crc32, progress=progress)
    troubles = [*contents.troubles, *_read_troubles(contents, scanned), *_sum_troubles(contents, scanned)]
    bad, notes = looking.judge(scanned)
    if bad:
        troubles.append(_non_finite(bad, contents, looking.roles, len(looking.arrays)))
    if must_hold_tensors and not troubles and not looking.holds_numbers:
        troubles.append(Trouble("unreadable", "It holds no tensor, so it is not a checkpoint of a model.", _NO_TENSOR))
    return Verdict(
        path=contents.path,
        state=worst(trouble.state for trouble in troubles),
        troubles=troubles,
        bad=bad,
        notes=[*contents.notes, *notes],
        tensors=len(contents.tensors),
        bytes_read=sum(storage.read for storage in scanned),
        checked=bool(scanned) and all(storage.crc32 is not None for storage in scanned if storage.read),
        seconds=time.perf_counter() - started,
    )


class _Looking:
    """Which tensors lie in which storage, and which of them must be finite."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._inside: dict[int, list[TensorInfo]] = defaultdict(list)
        for tensor in contents.tensors:
            if tensor.dtype in LAYOUTS and tensor.count and 0 <= tensor.storage < len(contents.storages):
                self._inside[tensor.storage].append(tensor)
        parts = parts_of(contents.tree)
        self.roles = {tensor.name: part.role for part in parts for tensor in tensors_in(part.value)}
        self.arrays = {
            name: (array, part is not None and is_kept_beside(part))
            for part in parts or (None,)
            for name, array in arrays_in(contents.tree if part is None else part.value, () if part is None else part.path)
        }
        self.holds_numbers = bool(contents.tensors or self.arrays)

    def wanted(self) -> list[Wanted]:
        """What is to be read, and as what kinds of numbers."""
        wanted = []
        for number, storage in enumerate(self._contents.storages):
            kinds = dict.fromkeys(LAYOUTS[tensor.dtype] for tensor in self._inside.get(number, ()))
            wanted.append(Wanted(storage, tuple(kinds)))
        return wanted

    def judge(self, scanned: list[Scanned]) -> tuple[list[BadTensor], list[str]]:
        """The tensors that are bad, in the order of the checkpoint, and notes about those that may be as they are."""
        bad: list[BadTensor] = []
        excused: dict[str, list[tuple[str, Counts]]] = defaultdict(list)
        for tensor in self._contents.tensors:
            counts = self._count(tensor, scanned) if tensor.storage in self._inside and tensor.dtype in LAYOUTS else Counts()
            if counts.all:
                excuse = self._excuse(tensor, counts)
                if excuse:
                    excused[excuse].append((tensor.name, counts))
                else:
                    bad.append(BadTensor(tensor.name, counts.nan, counts.inf, tensor.count))
        for name, (array, beside) in self.arrays.items():
            counts = Counts(array.nan, array.inf)
            if counts.all and beside:
                excused[_BESIDE].append((name, counts))
            elif counts.all and (counts.nan or not _MASK.search(name)):
                bad.append(BadTensor(name, counts.nan, counts.inf, math.prod(array.arguments[1])))
        return bad, [_note(excuse, tensors) for excuse, tensors in excused.items()]

    def _count(self, tensor: TensorInfo, scanned: list[Scanned]) -> Counts:
        begin, end = tensor.span
        ranges = [span for span in scanned[tensor.storage].bad if span[0] < end and span[1] > begin]
        storage = self._contents.storages[tensor.storage]
        return count_in(tensor, storage, ranges) if ranges else Counts()

    def _excuse(self, tensor: TensorInfo, counts: Counts) -> str:
        """Why a tensor may hold what it holds; empty if it may not."""
        role = self.roles.get(tensor.name, "weights")
        if role not in _MUST_BE_FINITE:
            return _BESIDE
        if role == "optimizer" or counts.nan:
            return ""
        if _UNSET.search(tensor.name):
            return "an observer for quantisation that has not seen any data"
        if _BOUND.search(tensor.name):
            return "a bound of Inf: there is no limit on that side"
        storage = self._contents.storages[tensor.storage]
        if not counts.positive and _may_be_a_mask(tensor, counts) and is_mask(tensor, storage):
            return "a mask, nothing but 0 and -Inf"
        return ""


def _may_be_a_mask(tensor: TensorInfo, counts: Counts) -> bool:
    """By its name, or by its shape and how much of it is -Inf: new biases are all 0, new norms all 1, and neither is a mask."""
    name = tensor.name.rpartition(".")[2]
    if _MASK.search(name):
        return True
    dimensions = sum(length > 1 for length in tensor.shape)
    return name not in ("weight", "bias") and dimensions > 1 and counts.negative >= _MASKED * tensor.count


def _note(excuse: str, tensors: list[tuple[str, Counts]]) -> str:
    nan, inf = sum(counts.nan for _, counts in tensors), sum(counts.inf for _, counts in tensors)
    hold = "holds" if len(tensors) == 1 else "hold"
    return f"{few([name for name, _ in tensors])} {hold} {amounts(nan, inf)}, and may: {excuse}"


def amounts(nan: int, inf: int) -> str:
    """How many of each, in words."""
    return " and ".join(f"{number:,} {name}" for number, name in ((nan, "NaN"), (inf, "Inf")) if number)


def _read_troubles(contents: Contents, scanned: list[Scanned]) -> Iterator[Trouble]:
    """Files that could not be read to their end, or changed meanwhile; each once."""
    errors: dict[Path, str] = {}
    for storage, reading in zip(contents.storages, scanned, strict=True):
        if reading.error:
            errors.setdefault(storage.file, reading.error)
    for file, error in errors.items():
        changed = "while it was read" in error
        message = f"{file.name}: {error}." if len(contents.files) > 1 else f"{error[:1].upper()}{error[1:]}."
        yield Trouble("torn", message, _AGAIN if changed else _COPY, file.name)
    for info in contents.files:
        if info.path not in errors and has_changed(info):
            message = f"{info.path.name} changed while it was read: another process is writing to it."
            yield Trouble("torn", message, _AGAIN, info.path.name)


def has_changed(info: FileInfo) -> bool:
    """Whether a file differs from when the checkpoint was opened."""
    try:
        now = info.path.stat()
    except OSError:
        return True
    return (now.st_size, now.st_mtime) != (info.size, info.modified)


def _sum_troubles(contents: Contents, scanned: list[Scanned]) -> Iterator[Trouble]:
    """Storages whose bytes do not match their checksums, told for each file."""
    torn = contents.state != "clean"
    wrong: dict[Path, list[int]] = defaultdict(list)
    for number, (storage, reading) in enumerate(zip(contents.storages, scanned, strict=True)):
        unknown = storage.crc32 is None or reading.crc32 is None or reading.error or (torn and not storage.crc32)
        if not unknown and reading.crc32 != storage.crc32:
            wrong[storage.file].append(number)
    names: dict[int, list[str]] = defaultdict(list)
    for tensor in contents.tensors if wrong else ():
        names[tensor.storage].append(tensor.name)
    for file, storages in wrong.items():
        hit = [name for number in storages for name in (names.get(number) or [contents.storages[number].name])]
        where = f" in {file.name}" if len(contents.files) > 1 else ""
        sums = "checksums" if len(storages) > 1 else "checksum"
        message = f"The bytes of {few(hit)}{where} do not match their {sums}: they were damaged after they were saved."
        yield Trouble("torn", message, _COPY, hit[0])


def _non_finite(bad: list[BadTensor], contents: Contents, roles: dict[str, Role], arrays: int) -> Trouble:
    """The sentence about all bad tensors, and what can still be done with the rest."""
    kinds = {roles.get(tensor.name, "weights") for tensor in bad}
    floating = sum(tensor.dtype in LAYOUTS for tensor in contents.tensors) + arrays
    nan, inf = sum(tensor.nan for tensor in bad), sum(tensor.inf for tensor in bad)
    hold = "tensors holds" if len(bad) == 1 else "tensors hold"
    message = f"{len(bad):,} of {floating:,} {hold} non-finite values: {amounts(nan, inf)}."
    if "weights" in kinds:
        own = [tensor.name for tensor in contents.tensors if tensor.dtype in LAYOUTS and roles.get(tensor.name) == "weights"]
        whole = sum(roles.get(tensor.name) == "weights" for tensor in bad) >= 0.9 * len(own)
        fix = "the training had already failed when it was saved: " + OLDER if whole and len(own) > 1 else OLDER
        if "ema" not in kinds and "ema" in set(roles.values()):
            fix += "; its averaged weights are finite"
    elif "optimizer" in kinds:
        fix = "the weights are finite: load these alone with a fresh optimizer, or " + OLDER
    else:
        fix = "the weights are finite: load these, not the averaged ones, or " + OLDER
    return Trouble("non-finite", message, fix, bad[0].name)
