"""Keras' own files: `.keras`, a zip archive with the weights as one HDF5 record, and `.weights.h5`, the weights alone.

h5py, which Keras needs itself, says where each tensor lies; its bytes are then read like those of any other file. HDF5 gets a
Python file: of one that it opens by name it forbids the training to write that name again.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from holdfast.checkpoints.contents import Contents, Storage, TensorInfo
from holdfast.checkpoints.formats.files import BadJson, few, file_info, parse_json, shown
from holdfast.checkpoints.formats.zip_index import STORED, BrokenIndex, Record, overlapping, read_index, unpack
from holdfast.checkpoints.harmless import ITEM_SIZES

MOST_TENSORS = 250_000
_WEIGHTS = "model.weights.h5"
_JSON = 64 << 20
_OLDER = "use an older checkpoint; if this one was copied, copy it again"
_CUT = re.compile(r"truncated file: eof = (\d+),.* stored_eof = (\d+)")
_DAMAGES = (OSError, RuntimeError, KeyError, ValueError, TypeError)  # what h5py raises


def open_keras(path: Path) -> Contents:
    """What a file of Keras holds; whatever is wrong with it is among the troubles. Raises OSError."""
    contents = Contents(path=path, format="keras", producer="keras", files=[file_info(path)], tree={})
    with path.open("rb") as file:
        if file.read(2) == b"PK":
            _add_archive(contents, file)
        else:
            _add_weights(contents, file, 0, contents.size)
    return contents


def _add_archive(contents: Contents, file: IO[bytes]) -> None:
    try:
        records = {record.name: record for record in read_index(file, contents.size) or ()}
        overlap = overlapping(list(records.values()))
        problem = f"{overlap[0]} and {overlap[1]} overlap" if overlap else "" if records else "its index, at the end, is missing"
    except BrokenIndex as error:
        records, problem = {}, str(error)
    problem = problem or next((f"{shown(record.name)} {record.problem}" for record in records.values() if record.problem), "")
    if problem:
        contents.trouble("torn", f"The archive is truncated or damaged: {problem}.", _OLDER)
        return
    for name, record in records.items():
        if name in ("config.json", "metadata.json"):
            _add_settings(contents, file, record)
    weights = records.get(_WEIGHTS)
    if weights is None or weights.method != STORED:
        contents.trouble("torn", f"The archive has no {_WEIGHTS} that Keras wrote.", _OLDER)
        return
    contents.storages.append(Storage(contents.path, weights.offset, weights.size, "uint8", weights.crc32, _WEIGHTS))
    _add_weights(contents, file, weights.offset, weights.size)


def _add_settings(contents: Contents, file: IO[bytes], record: Record) -> None:
    try:
        values = parse_json(unpack(file, record, _JSON) or b"")
    except BadJson as error:
        contents.trouble("torn", f"{record.name} in the archive is damaged: {error}.", _OLDER, record.name)
        return
    if record.name == "config.json":
        contents.tree["config"] = values
    elif isinstance(values, dict) and isinstance(version := values.get("keras_version"), str):
        contents.versions["keras"] = version[:40]


def _add_weights(contents: Contents, file: IO[bytes], begin: int, size: int) -> None:
    """The HDF5 file at some place in a file."""
    try:
        import h5py
    except ImportError:
        contents.trouble("unreadable", "h5py, which reads the files of Keras, is not installed.", "pip install h5py")
        return
    try:
        with h5py.File(_Part(file, begin, size), "r") as weights:
            datasets: dict[str, Any] = {}
            weights.visititems(lambda name, item: datasets.update({name: item} if isinstance(item, h5py.Dataset) else {}))
            if not (contents.path.name.endswith((".keras", ".weights.h5")) or _is_of_keras(weights, datasets)):
                message = "It is an HDF5 file, but not a checkpoint of Keras."
                contents.trouble("unreadable", message, "name the one that the training saved")
                return
            for name in sorted(datasets, key=_in_order)[:MOST_TENSORS]:
                _add_tensor(contents, name, datasets[name], begin, size)
    except _DAMAGES as error:
        sizes = _CUT.search(str(error))
        cut = f"It is truncated: {int(sizes[2]) - int(sizes[1]):,} of {int(sizes[2]):,} bytes are missing." if sizes else ""
        contents.trouble("torn", cut or f"Its HDF5 structure is damaged: {shown(str(error))}.", _OLDER)
        return
    if not contents.tensors and not contents.troubles:
        contents.trouble("torn", "It holds no weights: the save was interrupted before they were written.", _OLDER)


def _is_of_keras(weights: Any, names: Iterable[str]) -> bool:
    return "keras_version" in weights.attrs or any("vars" in name.split("/") for name in names)


def _in_order(name: str) -> list[tuple[int, str]]:
    """`vars/2` before `vars/10`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split("/")]


def _add_tensor(contents: Contents, path: str, dataset: Any, begin: int, size: int) -> None:
    """A dataset whose bytes lie in one piece, as Keras writes them."""
    kind = dataset.dtype
    dtype = str(dataset.attrs.get("dtype", "")) if kind.kind == "V" else kind.name  # bfloat16 has no kind in HDF5
    if kind.kind in "OSU":
        return
    first, _, rest = path.partition("/")
    key, name = ("optimizer", rest) if first in ("optimizer", "optimizer_weights") else ("model", path)
    name = name.replace("/", ".")
    info = TensorInfo(f"{key}.{name}", dtype, tuple(map(int, dataset.shape)), len(contents.storages))
    length, offset = info.count * kind.itemsize, dataset.id.get_offset()
    if (length and dtype not in ITEM_SIZES) or kind.byteorder == ">" or dataset.chunks is not None or dataset.is_virtual:
        contents.notes.append(f"{shown(path)} is stored in a way that Keras does not use, and is not checked")
        return
    if length and (offset is None or offset + length > size):
        contents.trouble("torn", f"{few([path])} lies beyond the end of the file, or was never written.", _OLDER, path)
        return
    contents.storages.append(Storage(contents.path, begin + (offset or 0), length, dtype, name=path))
    contents.tensors.append(info)
    contents.tree.setdefault(key, {})[name] = info
    if key == "optimizer" and info.shape == () and name.endswith(("vars.0", ".iteration")) and kind.kind in "iu":
        contents.tree["step"] = int(dataset[()])


class _Part(io.RawIOBase):
    """A part of a file, as a file to be read."""

    def __init__(self, file: IO[bytes], begin: int, size: int) -> None:
        self._file, self._begin, self._size, self._at = file, begin, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, room: Any) -> int:
        self._file.seek(self._begin + self._at)
        got = self._file.readinto(memoryview(room)[: max(0, self._size - self._at)])  # type: ignore[attr-defined]
        self._at += got
        return int(got)
