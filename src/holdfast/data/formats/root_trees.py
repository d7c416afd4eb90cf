"""ROOT trees, read with uproot in chunks: scalars, fixed arrays, structures, jagged arrays and strings."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.data.columns import BYTES, Chunk, Column, Part, TableSet, rows_at_once
from holdfast.data.listing import Listing, split_named
from holdfast.data.problem import Fault
from holdfast.errors import UsageError

_TREES = ("TTree", "TNtuple", "TNtupleD", "TChain")
_NTUPLE = "ROOT::RNTuple"
_NTUPLE_ROWS = 8192
_LIST_SIZE, _LIST_ITEMS = struct.Struct("<q"), struct.Struct("<I")


def recognise(listing: Listing, named: str | None) -> float | None:
    """How sure it is that these are ROOT files."""
    return 0.9 if listing.named_or_all(named, ".root") else None


def read(listing: Listing, named: str | None, tree: str | None = None) -> TableSet:
    """One part for each file: the tree that was named, or its largest one."""
    uproot = _uproot()
    data = TableSet("root", listing.root, [])
    for file in [named] if named else listing.with_suffix(".root"):
        path = listing.root / file
        try:
            with uproot.open(path) as opened:
                trees = _trees(opened)
        except Exception as error:  # noqa: BLE001 - uproot raises anything on damaged files
            data.faults.append(Fault("tree-unreadable", file, 0, " ".join(f"{type(error).__name__}: {error}".split())[:200]))
            continue
        if tree is not None and tree not in trees:
            there = ", ".join(trees) or "none"
            raise UsageError(f"{path} has no tree {tree}", fix=f"name one of: {there}")
        if not trees:
            data.faults.append(Fault("tree-unreadable", file, 0, "it holds no tree"))
            continue
        chosen = tree or max(trees, key=lambda name: trees[name])
        if len(trees) > 1 and tree is None:
            others = ", ".join(name for name in trees if name != chosen)
            data.notes.append(f"{file}: the tree {chosen} was read; --tree selects another: {others}")
        data.parts.append(Part(split_named(file), file, partial(_chunks, path, chosen), trees[chosen]))
    return data


def _uproot() -> Any:
    try:
        import awkward  # noqa: F401 - uproot needs it for jagged arrays
        import uproot
    except ImportError:
        raise UsageError("ROOT files need uproot and awkward", fix="pip install 'holdfast[data]'") from None
    _bound_lists(uproot.models.RNTuple)
    return uproot


def _bound_lists(ntuples: Any) -> None:
    """Keep uproot from filling the memory with a list as long as a damaged RNTuple claims: no list has more items than bytes."""
    reader = getattr(ntuples, "ListFrameReader", None)
    if reader is None or getattr(reader.read, "is_bounded", False):
        return
    read_all = reader.read

    def read(self: Any, chunk: Any, cursor: Any, context: Any) -> Any:
        start = cursor.copy()
        start.field(chunk, _LIST_SIZE, context)
        items = start.field(chunk, _LIST_ITEMS, context)
        if items > len(chunk.raw_data):
            raise ValueError(f"a list claims {items:,} items in {len(chunk.raw_data):,} bytes")
        return read_all(self, chunk, cursor, context)

    read.is_bounded = True  # type: ignore[attr-defined]
    reader.read = read


def _trees(opened: Any) -> dict[str, int]:
    """Name and number of rows of each tree; of several cycles of one tree the newest."""
    trees = {}
    for name, kind in opened.classnames(recursive=True, cycle=False).items():
        if kind in (*_TREES, _NTUPLE):
            trees[name] = int(opened[name].num_entries)
    return trees


def _chunks(path: Path, tree: str) -> Iterator[Chunk]:
    uproot = _uproot()
    with uproot.open(path) as opened:
        source = opened[tree]
        if source.classname == _NTUPLE:
            yield from _of_ntuple(source)
            return
        branches = [name for name, branch in source.iteritems() if _can_be_read(uproot, branch)]
        if not branches:
            raise ValueError("none of its branches can be read")
        size = sum(source[name].uncompressed_bytes for name in branches) / max(source.num_entries, 1)
        for start in range(0, source.num_entries, rows_at_once(size)):
            stop = min(start + rows_at_once(size), source.num_entries)
            chunk: Chunk = {}
            for name in branches:
                chunk.update(_columns(name, source[name].array(entry_start=start, entry_stop=stop, library="ak")))
            yield chunk


def _of_ntuple(source: Any) -> Iterator[Chunk]:
    """The newer kind of tree; it does not say how large its rows are."""
    at_once = rows_at_once(BYTES / _NTUPLE_ROWS)
    for start in range(0, source.num_entries, at_once):
        stop = min(start + at_once, source.num_entries)
        rows = source.arrays(entry_start=start, entry_stop=stop, library="ak")
        yield {key: column for name in rows.fields for key, column in _columns(name, rows[name])}


def _can_be_read(uproot: Any, branch: Any) -> bool:
    """Branches whose values are numbers or strings, by themselves or in arrays; groups are read by their parts."""
    kinds = (uproot.AsDtype, uproot.AsStrings)
    what = branch.interpretation
    return isinstance(what, kinds) or (isinstance(what, uproot.AsJagged) and isinstance(what.content, uproot.AsDtype))


def _columns(name: str, values: Any) -> Iterator[tuple[str, Column]]:
    import awkward as ak

    if ak.parameters(values).get("__array__") == "string" or "string" in str(values.type):
        yield name, Column(np.array(ak.to_list(values), dtype=object))
    elif ak.fields(values):
        for field in ak.fields(values):
            yield from _columns(f"{name}.{field}", values[field])
    elif isinstance(values.type.content, (ak.types.ListType,)):
        counts = ak.to_numpy(ak.num(values)).astype(np.int64)
        flat = ak.to_numpy(ak.flatten(values, axis=1))
        if flat.ndim > 1:
            counts, flat = counts * (flat.size // max(len(flat), 1)), flat.ravel()
        yield name, Column(_native(flat), counts)
    else:
        yield name, Column(_native(ak.to_numpy(values)))


def _native(values: Any) -> Any:
    """Numbers in this machine's order of bytes; truth as 0 and 1."""
    if values.dtype.kind == "b":
        return values.astype(np.int8)
    return values.astype(values.dtype.newbyteorder("="))
