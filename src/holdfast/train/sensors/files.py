"""Files of events: ROOT, Parquet and .npz, any rows of some branches at a time. torch is not imported here.

A file is opened in the process that reads it, and again in each loader worker.
"""

from __future__ import annotations

import difflib
import glob
import math
import os
import shutil
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.data.cache import cache_folder, fingerprint, stamp_of
from holdfast.data.formats.arrays import read_header
from holdfast.data.formats.tables import columns_of_batch
from holdfast.errors import UsageError

Values = npt.NDArray[Any]
_MOST_OPEN = 64  # files of a process: thousands would need more handles than it may have
_ENDINGS = (".root", ".parquet", ".pq", ".npz")


class UnevenLists(UsageError):
    """Events with different numbers of values."""


_recent: OrderedDict[int, EventFile] = OrderedDict()  # that this process has open, the last used one at the end


class EventFile:
    """One file. `ends` are the rows at which it is cheap to stop reading: baskets of ROOT, row groups of Parquet."""

    rows: int
    ends: Sequence[int] = ()
    kind = "branch"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: Any = None
        self._owner = 0  # the process that has opened it

    def __getstate__(self) -> dict[str, Any]:
        """A worker opens it again."""
        return {**vars(self), "_handle": None, "_owner": 0}

    @property
    def handle(self) -> Any:
        """What this process reads it with."""
        if self._owner != os.getpid():
            self._handle, self._owner = self._open(), os.getpid()
        _recent.pop(id(self), None)
        _recent[id(self)] = self
        while len(_recent) > _MOST_OPEN:
            _recent.popitem(last=False)[1].close()
        return self._handle

    def close(self) -> None:
        """Close it until it is read again; what another process has opened is only forgotten."""
        if self._owner == os.getpid():
            self._close()
        self._handle, self._owner = None, 0

    def _close(self) -> None:
        self._handle.close()

    def names(self) -> list[str]:
        """The branches, columns or arrays that it has."""
        raise NotImplementedError

    def read(self, names: Sequence[str], start: int, stop: int) -> dict[str, Values]:
        """These rows of some branches, a row for each event."""
        raise NotImplementedError

    def check_names(self, names: Sequence[str]) -> None:
        """UsageError that names the file, the branch and the nearest one there is."""
        there = self.names()
        for name in names:
            if name not in there:
                near = difflib.get_close_matches(name, there, n=1) or there[:8]
                has = f"did you mean {near[0]}?" if len(near) == 1 else f"it has: {', '.join(near)}"
                raise UsageError(f"{self.path} has no {self.kind} {name!r}.", fix=f"{has} (`branch:` in the config names it)")

    def _open(self) -> Any:
        raise NotImplementedError

    def _even(self, name: str, flat: Values, counts: Values) -> Values:
        """Lists that all have one length, as rows."""
        if len(counts) and counts.min() != counts.max():
            problem = f"{self.path}: {self.kind} {name!r} has {counts.min()} to {counts.max()} values per event"
            raise UnevenLists(problem, fix="each event needs the same number of values: pad it, with `invalid:` as the filler")
        return flat.reshape(len(counts), -1)


class RootFile(EventFile):
    """A tree of a ROOT file."""

    def __init__(self, path: Path, tree: str, threads: int) -> None:
        super().__init__(path)
        self._tree, self._threads = tree, threads
        self.rows = int(self.handle.num_entries)

    def _open(self) -> Any:
        try:
            import awkward  # noqa: F401 - uproot needs it for lists
            import uproot
        except ImportError:
            raise UsageError("ROOT files need uproot and awkward.", fix="pip install 'holdfast[sensors]'") from None
        opened = uproot.open(self.path)
        trees = {name: opened[name] for name, kind in opened.classnames(cycle=False).items() if kind in ("TTree", "TNtuple")}
        if not trees or (self._tree and self._tree not in trees):
            fix = f"--tree with one of: {', '.join(trees)}" if trees else "a file with a TTree"
            raise UsageError(f"{self.path} has no tree {self._tree}".rstrip() + ".", fix=fix)
        chosen = trees[self._tree] if self._tree else max(trees.values(), key=lambda tree: int(tree.num_entries))
        self._branches = dict(chosen.iteritems())
        return chosen

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_branches": None}

    def _close(self) -> None:
        self._handle.file.close()
        self._branches = {}

    def names(self) -> list[str]:
        """Branches, and the leaves of structures as branch.leaf."""
        names = []
        for name, branch in (self.handle and self._branches).items():
            fields = getattr(getattr(branch.interpretation, "from_dtype", None), "names", None)
            names += [f"{name}.{field}" for field in fields] if fields else [name]
        return names

    def align(self, names: Sequence[str]) -> None:
        """Stop reading where the baskets of these branches end: a basket is unpacked as a whole."""
        tree = self.handle
        ends = [set(self._branches[self._place(name)[0]].entry_offsets) for name in names]
        self.ends = sorted(set.intersection(*ends)) if tree is not None and ends else ()

    def read(self, names: Sequence[str], start: int, stop: int) -> dict[str, Values]:
        """Rows of some branches; lists must have one length."""
        import awkward as ak

        _, read = self.handle, {}
        pool = _threads(self._threads, os.getpid()) if self._threads > 1 else None
        options = {"decompression_executor": pool, "interpretation_executor": pool, "array_cache": None}
        for name in names:
            branch, leaf = self._place(name)
            array = self._branches[branch].array(entry_start=start, entry_stop=stop, library="ak", **options)
            array = array[leaf] if leaf else array
            if isinstance(array.type.content, ak.types.ListType):
                values = self._even(name, ak.to_numpy(ak.flatten(array, axis=1)), ak.to_numpy(ak.num(array)))
            else:
                values = ak.to_numpy(array)
            read[name] = values
        return read

    def _place(self, name: str) -> tuple[str, str]:
        branch, _, leaf = name.rpartition(".")
        return (name, "") if name in self._branches else (branch, leaf)


@lru_cache(maxsize=1)
def _threads(count: int, _: int) -> Any:
    """The threads of a process that unpack baskets."""
    import uproot

    return uproot.ThreadPoolExecutor(count)


class ParquetFile(EventFile):
    """A Parquet file."""

    kind = "column"

    def __init__(self, path: Path, threads: int) -> None:
        super().__init__(path)
        self._threads = threads
        meta = self.handle.metadata
        groups = [meta.row_group(number).num_rows for number in range(meta.num_row_groups)]
        self.rows, self.ends = int(meta.num_rows), np.cumsum(groups).tolist()

    def _open(self) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pa.set_cpu_count(max(1, self._threads))
        return pq.ParquetFile(self.path)

    def names(self) -> list[str]:
        """Its columns."""
        return [str(name) for name in self.handle.schema_arrow.names]

    def read(self, names: Sequence[str], start: int, stop: int) -> dict[str, Values]:
        """Rows of some columns. Row groups are decoded in parts, so that a large one does not lie in memory as a whole."""
        parts: dict[str, list[Values]] = {name: [] for name in names}
        for first, batch in self._batches(names, start, stop):
            rows = batch.slice(max(0, start - first), min(stop, first + batch.num_rows) - max(start, first))
            for name, column in columns_of_batch(rows).items():
                values = column.values if column.counts is None else self._even(name, column.values, column.counts)
                parts[name].append(values)
        return {name: np.concatenate(some) if len(some) > 1 else some[0] for name, some in parts.items()}

    def _batches(self, names: Sequence[str], start: int, stop: int) -> Iterator[tuple[int, Any]]:
        for group, end in enumerate(self.ends):
            first = self.ends[group - 1] if group else 0
            if end <= start or first >= stop:
                continue
            for batch in self.handle.iter_batches(stop - start, [group], list(names), use_threads=self._threads > 1):
                if first < stop and first + batch.num_rows > start and batch.num_rows:
                    yield first, batch
                first += batch.num_rows
                if first >= stop:
                    break


class ArrayFile(EventFile):
    """An .npz file: its arrays are mapped into memory. Those of a compressed one are unpacked once, into the cache."""

    kind = "array"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        lengths = {name: len(values) if values.ndim else 0 for name, values in self.handle.items()}
        self.rows = max(lengths.values(), default=0)

    def _open(self) -> dict[str, Values]:
        with zipfile.ZipFile(self.path) as archive:
            members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            return {info.filename.removesuffix(".npy"): self._mapped(archive, info) for info in members}

    def _close(self) -> None:
        """The maps go with the last array that uses them."""

    def names(self) -> list[str]:
        """Its arrays."""
        return list(self.handle)

    def read(self, names: Sequence[str], start: int, stop: int) -> dict[str, Values]:
        """Rows of some arrays."""
        for name in names:
            if len(self.handle[name]) != self.rows:
                problem = f"{self.path}: array {name!r} has {len(self.handle[name]):,} rows, others {self.rows:,}."
                raise UsageError(problem, fix="each array needs a row for each event")
        return {name: np.asarray(self.handle[name][start:stop]) for name in names}

    def _mapped(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Values:
        if info.compress_type == zipfile.ZIP_STORED:
            with self.path.open("rb") as file:
                file.seek(info.header_offset + 26)
                lengths = np.frombuffer(file.read(4), "<u2")  # of the name and of the extra field
                file.seek(int(lengths.sum()), os.SEEK_CUR)
                return self._map(self.path, file, info)
        path = cache_folder() / f"{fingerprint(str(self.path.resolve()), stamp_of(self.path), info.filename)}.npy"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(f".{os.getpid()}")
            with archive.open(info) as packed, part.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked, 1 << 20)
            part.replace(path)
        with path.open("rb") as file:
            return self._map(path, file, info)

    def _map(self, path: Path, file: Any, info: zipfile.ZipInfo) -> Values:
        stored = read_header(file, self.path.name, info.filename, info.file_size)
        if not math.prod(stored.shape):
            return np.zeros(stored.shape, stored.dtype)
        return np.memmap(path, stored.dtype, "r", file.tell(), stored.shape, order="F" if stored.fortran else "C")


def open_files(data: str, tree: str = "", threads: int = 1) -> list[EventFile]:
    """The files that a path, folder or pattern means; UsageError where there is none, or one cannot be read."""
    path = Path(data)
    if path.is_dir():
        paths = sorted(file for file in path.rglob("*") if file.suffix in _ENDINGS)
    else:
        paths = [path] if path.exists() else sorted(map(Path, glob.glob(data, recursive=True)))  # noqa: PTH207 - the pattern may be absolute
    if not paths:
        raise UsageError(f"{data} has no events.", fix=f"a file, folder or pattern of {', '.join(_ENDINGS)} files")
    files = [_opened(file, tree, threads) for file in paths]
    return [file for file in files if file.rows]


def _opened(path: Path, tree: str, threads: int) -> EventFile:
    if path.suffix not in _ENDINGS:
        raise UsageError(f"{path} is not a file of events.", fix=f"use one of: {', '.join(_ENDINGS)}")
    try:
        if path.suffix == ".root":
            return RootFile(path, tree, threads)
        return ArrayFile(path) if path.suffix == ".npz" else ParquetFile(path, threads)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - readers raise anything on damaged files
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UsageError(f"{path} cannot be read: {reason}.", fix="replace or remove it; holdfast validate shows more") from None
