"""`holdfast.PredictionWriter`: predictions go to disk as they come, in bounded memory, however many there are.

A folder of Parquet files, each whole as soon as it has its name: a process that is killed loses what it had not written yet,
and no more. Everything that reads Parquet reads the folder: `SELECT * FROM 'predictions/*.parquet'`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from holdfast.errors import DiskFull, StorageError, UsageError

_MEGABYTE = 1 << 20


class PredictionWriter:
    """Writes columns of equal length, batch after batch; a file is written when `buffer_mb` of them are gathered.

    Each rank of several writes files of its own into the same folder.
    """

    ending = "parquet"

    def __init__(self, folder: str | os.PathLike[str], *, buffer_mb: float = 32.0, overwrite: bool = False) -> None:
        self.folder = Path(folder)
        self.rows = 0
        self._most = int(buffer_mb * _MEGABYTE)
        self._rank = os.environ.get("RANK", "0")
        self._files = self._held = 0
        self._columns: dict[str, list[np.ndarray[Any, Any]]] = {}
        self._kinds: dict[str, tuple[Any, ...]] = {}
        self._make_folder(overwrite)

    def write(self, **columns: Any) -> None:
        """Add a batch: tensors, arrays or lists, a row for each sample. They are copied: reuse them as you like."""
        arrays = {name: _array(name, values) for name, values in columns.items()}
        self._check(arrays)
        for name, values in arrays.items():
            self._columns.setdefault(name, []).append(values)
        self.rows += len(next(iter(arrays.values())))
        self._held += sum(_size(values) for values in arrays.values())
        if self._held >= self._most:
            self.flush()

    def flush(self) -> None:
        """Write what is gathered, now."""
        if not self._held:
            return
        self.store(self._columns)
        self._files += 1
        self._columns, self._held = {}, 0

    def store(self, columns: Mapping[str, list[np.ndarray[Any, Any]]]) -> None:
        """Write some columns, whose parts follow one another, as one more file."""
        import pyarrow as pa
        from pyarrow import parquet

        table = pa.table({name: _column(pa, parts) for name, parts in columns.items()})
        path = self.folder / f"rank-{self._rank}-{self._files:05d}.parquet"
        unfinished = path.with_suffix(".unfinished")
        try:
            parquet.write_table(table, unfinished, compression="zstd")
            unfinished.replace(path)
        except OSError as error:
            unfinished.unlink(missing_ok=True)
            raise _in_words(error, path) from error
        del table
        pa.default_memory_pool().release_unused()

    def close(self) -> None:
        """Write the rest."""
        self.flush()

    def __enter__(self) -> PredictionWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _make_folder(self, overwrite: bool) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _in_words(error, self.folder) from error
        mine = sorted(self.folder.glob(f"rank-{self._rank}-*.{self.ending}"))
        if mine and not overwrite:
            raise UsageError(
                f"{self.folder} holds {len(mine)} files of predictions already.",
                fix="name another folder, or say PredictionWriter(folder, overwrite=True)",
            )
        for file in mine:
            file.unlink()

    def _check(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        if not arrays:
            raise UsageError("write() was given no column.", fix="name at least one: writer.write(score=scores)")
        lengths = {name: len(values) for name, values in arrays.items()}
        if len(set(lengths.values())) > 1:
            columns = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
            raise UsageError(f"columns of different length: {columns}.", fix="each needs a row for each sample of the batch")
        kinds = {name: (values.dtype.kind, values.shape[1:]) for name, values in arrays.items()}
        if not self._kinds:
            self._kinds = kinds
        elif kinds != self._kinds:
            name = next(iter(key for key in {**kinds, **self._kinds} if kinds.get(key) != self._kinds.get(key)))
            raise UsageError(
                f"column {name!r}: {_kind_words(kinds.get(name))}, but in the first batch {_kind_words(self._kinds.get(name))}.",
                fix="write the same columns, of the same kind and shape, each time",
            )


def _array(name: str, values: Any) -> np.ndarray[Any, Any]:
    """A copy on the host, at least one-dimensional; half precision that numpy does not know becomes single."""
    if hasattr(values, "detach"):
        tensor = values.detach()
        tensor = tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor
        values = tensor.cpu().numpy()
    array = np.atleast_1d(np.array(values))
    if array.dtype.kind not in "biufUSO" or (array.dtype.kind == "O" and array.ndim > 1):
        raise UsageError(f"column {name!r} holds {array.dtype}.", fix="write numbers or text, a row for each sample")
    return array


def _column(pa: Any, parts: list[np.ndarray[Any, Any]]) -> Any:
    """One-dimensional as it is; more dimensions as lists of a fixed length."""
    whole = np.concatenate(parts) if len(parts) > 1 else parts[0]
    if whole.ndim == 1:
        return pa.array(whole)
    return pa.FixedSizeListArray.from_arrays(pa.array(whole.reshape(-1)), int(np.prod(whole.shape[1:])))


def _size(array: np.ndarray[Any, Any]) -> int:
    """Bytes; text behind pointers is counted by its length."""
    return sum(len(str(value)) + 56 for value in array) if array.dtype.kind == "O" else max(1, array.nbytes)


def _kind_words(kind: tuple[Any, ...] | None) -> str:
    if kind is None:
        return "missing"
    names = {"f": "floating point", "i": "whole numbers", "u": "whole numbers", "b": "yes or no", "O": "objects"}
    shape = f" of shape {tuple(kind[1])}" if kind[1] else ""
    return names.get(kind[0], "text") + shape


def _in_words(error: OSError, path: Path) -> StorageError:
    kept = "what was written before is whole"
    if error.errno in (28, 122):  # no space, quota
        return DiskFull(f"no room for {path}: {error.strerror}; {kept}.", fix="make room, or write to another disk")
    return StorageError(
        f"{path} cannot be written: {error.strerror or error}; {kept}.", fix="choose a folder that can be written"
    )
