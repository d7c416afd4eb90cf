"""NumPy arrays: .npy and .npz, of any size. Arrays of objects are pickles: they are reported, and never opened.

Arrays of one length that lie together (`x_train`, `y_train` in an .npz, or `x_train.npy` beside `y_train.npy`) are columns of
one table. A header is believed only as far as the bytes behind it reach.
"""

from __future__ import annotations

import contextlib
import math
import posixpath
import re
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from holdfast import units
from holdfast.data.columns import Array, Chunk, Column, Part, TableSet, label_column, rows_at_once
from holdfast.data.listing import Listing, split_named, suffix
from holdfast.data.problem import Fault

ENDINGS = (".npy", ".npz")
_MOST_COLUMNS = 512
_LARGE, _BOMB = 1 << 30, 500  # an array above this size may have grown so many times when it was unpacked


class Stored(NamedTuple):
    """One array in a file: the member of an .npz, or empty for an .npy."""

    file: str
    member: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool = False  # the first index varies fastest: rows do not lie one after the other

    @property
    def name(self) -> str:
        """What it is called: without folder, ending and split."""
        word = posixpath.splitext(posixpath.basename(self.member or self.file))[0]
        short = re.sub(r"(^|[_\-.])(train|training|val|valid|validation|test|testing)(?=$|[_\-.])", "", word, flags=re.IGNORECASE)
        return short.strip("_-.") or word

    @property
    def split(self) -> str:
        """The split that its name or that of its file tells."""
        own = split_named(self.member) if self.member else "all"
        return own if own != "all" else split_named(self.file)


def recognise(listing: Listing, named: str | None) -> float | None:
    """How sure it is that these are arrays."""
    files = listing.named_or_all(named, *ENDINGS)
    return (0.2 if listing.images() else 0.5) if files else None


def read(listing: Listing, named: str | None) -> TableSet:
    """Read the headers, and put arrays of one split and length together."""
    files = [named] if named else listing.with_suffix(*ENDINGS)
    data = TableSet("array", listing.root, [])
    groups: dict[tuple[str, str, int], list[Stored]] = {}
    for file in files:
        for stored in _stored(listing.root, file, data.faults):
            folder = stored.file if stored.member else posixpath.dirname(file)
            groups.setdefault((stored.split, folder, stored.shape[0] if stored.shape else 1), []).append(stored)
    for (split, _, rows), some in groups.items():
        shapes = {array.name: array.shape[1:] for array in some if len(array.shape) > 1}
        data.parts.append(Part(split, some[0].file, partial(_chunks, listing.root, some), rows, shapes=shapes))
    data.faults += _other_lengths(groups)
    return data


def _other_lengths(groups: dict[tuple[str, str, int], list[Stored]]) -> Iterator[Fault]:
    """Labels of a split that are more or fewer than the samples beside them."""
    beside: dict[tuple[str, str], dict[str, Stored]] = {}
    for (split, folder, _), some in groups.items():
        beside.setdefault((split, folder), {}).update({array.name: array for array in some})
    for arrays in beside.values():
        label = arrays.get(label_column(list(arrays), None) or "")
        rows = {name: array.shape[0] for name, array in arrays.items() if array is not label and array.shape}
        if label is not None and label.shape and rows and label.shape[0] not in rows.values():
            longest = max(rows, key=lambda name: rows[name])
            detail = f"{label.name} has {label.shape[0]:,} rows, {longest} has {rows[longest]:,}"
            yield Fault("array-lengths", label.file, 0, detail)


def _stored(root: Path, file: str, faults: list[Fault]) -> Iterator[Stored]:
    try:
        if suffix(file) == ".npy":
            with (root / file).open("rb") as opened:
                yield read_header(opened, file, "", (root / file).stat().st_size)
            return
        with zipfile.ZipFile(root / file) as archive:
            for info in archive.infolist()[:10_000]:
                if not info.filename.endswith(".npy"):
                    continue
                if info.file_size > _LARGE and info.file_size > _BOMB * info.compress_size:
                    raise ValueError(
                        f"{info.filename} grows {info.file_size // max(info.compress_size, 1):,} times when unpacked"
                    )
                with archive.open(info) as opened:
                    yield read_header(opened, file, info.filename, info.file_size)
    except _Pickled as error:
        faults.append(Fault("array-pickled", file, 0, str(error)))
    except Exception as error:  # noqa: BLE001 - a damaged header makes NumPy and zipfile raise a dozen kinds of error
        faults.append(Fault("array-unreadable", file, 0, f"{type(error).__name__}: {error}"[:200]))


class _Pickled(Exception):
    """An array of Python objects."""


def read_header(opened: IO[bytes], file: str, member: str, size: int) -> Stored:
    """The array that begins here; `opened` is left where its values begin."""
    version = npy.read_magic(opened)
    reader = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if reader is None:
        raise ValueError(f"unknown format version {version}")
    shape, fortran, dtype = reader(opened)
    if dtype.hasobject:
        raise _Pickled("an array of Python objects: reading it would run what is inside")
    if any(side < 0 for side in shape) or math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"its header says {shape} of {dtype}, which is more than the {units.size(size)} there are")
    if 0 in (*shape[1:], dtype.itemsize):
        raise ValueError(f"its header says {shape} of {dtype}: rows without a value")  # as many as it likes
    fortran = fortran and len(shape) > 1
    if fortran and member and math.prod(shape) * dtype.itemsize > _LARGE:
        raise ValueError(
            f"larger than {units.size(_LARGE)}, in an archive and in Fortran order: save it with np.ascontiguousarray"
        )
    return Stored(file, member, shape, dtype, fortran)


def _chunks(root: Path, some: list[Stored]) -> Iterator[Chunk]:
    """Rows of all arrays side by side."""
    width = sum(math.prod(array.shape[1:]) * array.dtype.itemsize for array in some)
    at_once, total = rows_at_once(width), some[0].shape[0] if some[0].shape else 1
    with contextlib.ExitStack() as stack:
        readers = [_reader(stack, root, array) for array in some]
        for start in range(0, total, at_once):
            rows = min(at_once, total - start)
            chunk: Chunk = {}
            for array, read_rows in zip(some, readers, strict=True):
                chunk.update(_columns(array, read_rows(start, rows)))
            yield chunk


def _reader(stack: contextlib.ExitStack, root: Path, stored: Stored) -> Callable[[int, int], Array]:
    """What reads rows of a file or member, from a row on, so many; in order."""
    opened: IO[bytes]
    if stored.member:
        archive = stack.enter_context(zipfile.ZipFile(root / stored.file))
        opened = stack.enter_context(archive.open(stored.member))
    else:
        opened = stack.enter_context((root / stored.file).open("rb"))
    read_header(opened, stored.file, stored.member, 1 << 62)
    if not stored.fortran:
        return lambda _start, rows: _rows(opened, stored, rows)
    count = math.prod(stored.shape)
    if stored.member:
        flat: Array = np.frombuffer(opened.read(count * stored.dtype.itemsize), stored.dtype, count)
    else:
        flat = np.memmap(root / stored.file, stored.dtype, "r", opened.tell(), (count,))
    turned = flat.reshape(stored.shape, order="F")
    return lambda start, rows: np.ascontiguousarray(turned[start : start + rows])


def _rows(opened: IO[bytes], stored: Stored, rows: int) -> Array:
    inner = stored.shape[1:]
    wanted = rows * math.prod(inner) * stored.dtype.itemsize
    content = opened.read(wanted)
    if len(content) < wanted:
        raise ValueError(f"{stored.member or stored.file} ends before its last row")
    return np.frombuffer(content, dtype=stored.dtype).reshape(rows, *inner)


def _columns(stored: Stored, values: Array) -> Iterator[tuple[str, Column]]:
    """A column for each feature where there are few, for each channel of images, and one for all otherwise."""
    if values.dtype.kind == "c":
        for part in ("real", "imag"):
            yield from ((f"{name}.{part}", column) for name, column in _columns(stored, getattr(values, part)))
    elif values.dtype.fields:
        for name in values.dtype.names or ():
            yield f"{stored.name}.{name}", Column(values[name])
    elif values.ndim == 1:
        yield stored.name, Column(values)
    elif values.ndim == 2 and values.shape[1] <= _MOST_COLUMNS:
        for place in range(values.shape[1]):
            yield f"{stored.name}[{place}]", Column(values[:, place])
    else:
        yield from _by_channel(stored.name, values)


def _by_channel(name: str, values: Array) -> Iterator[tuple[str, Column]]:
    """Images and series: the axis with at most 16 entries, directly behind the rows or at the end, is that of the channels."""
    rows = len(values)
    if values.ndim >= 3 and values.shape[1] <= 16:
        for place in range(values.shape[1]):
            yield f"{name}[{place}]", Column(values[:, place].reshape(rows, -1))
    elif values.ndim >= 3 and values.shape[-1] <= 16:
        for place in range(values.shape[-1]):
            yield f"{name}[…, {place}]", Column(values[..., place].reshape(rows, -1))
    else:
        yield name, Column(values.reshape(rows, -1))
