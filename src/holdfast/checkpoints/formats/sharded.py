"""Weights in several files with an index beside them, as Hugging Face's libraries write them.

model.safetensors.index.json          {"metadata": {"total_size": …}, "weight_map": {tensor: file}}
model-00001-of-00006.safetensors …
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from holdfast.checkpoints.contents import Contents
from holdfast.checkpoints.formats.files import BadJson, few, read_json, shown
from holdfast.checkpoints.formats.find import SHARD
from holdfast.checkpoints.formats.joining import add_file, join, open_part
from holdfast.checkpoints.formats.one_file import open_file

_FETCH = "copy or download the missing files again; if this is where it was saved, use an older checkpoint"


def open_index(path: Path) -> Contents:
    """All shards that an index names, as one. Raises OSError."""
    contents = Contents(path=path, format="sharded safetensors" if ".safetensors." in path.name else "sharded torch")
    add_file(contents, path)
    try:
        index = read_json(path)
    except BadJson as error:
        contents.trouble("torn", f"The index is damaged: {error}.", _FETCH, path.name)
        return contents
    wanted = _shards(index)
    if wanted is None:
        contents.trouble("unreadable", "The index does not say which tensor is in which file (`weight_map`).", _FETCH, path.name)
        return contents
    contents.tree = {}
    for name, tensors in wanted.items():
        _add_shard(contents, path.parent, name, tensors)
    _compare_size(contents, index)
    return contents


def lonely_shards(names: list[str]) -> tuple[list[str], str]:
    """Shards in a folder without an index: their names, and what to say about it."""
    shards = {name: match for name in names if (match := SHARD.match(name))}
    total = max((int(match[3]) for match in shards.values()), default=0)
    there = {int(match[2]) for match in shards.values()}
    missing = total - len(there)
    words = f"The folder has {len(there)} of {total} shards and no index that says which tensor is in which."
    if missing > 0:
        words = f"The folder has {len(there)} of {total} shards and no index: the save or the download was interrupted."
    return sorted(shards), words


def _shards(index: Any) -> dict[str, list[str]] | None:
    """The tensors of each file; None if the index is not one. A file may lie nowhere but beside the index."""
    table = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(table, dict) or not all(isinstance(file, str) for file in table.values()):
        return None
    wanted: dict[str, list[str]] = defaultdict(list)
    for tensor, file in table.items():
        wanted[file].append(tensor)
    return dict(sorted(wanted.items()))


def _add_shard(contents: Contents, folder: Path, name: str, wanted: list[str]) -> None:
    if re.search(r"[/\\\0]", name) or name in ("", ".", ".."):
        contents.trouble(
            "unreadable", f"The index names a file outside of its folder: {shown(name)}.", "do not load it", name[:60]
        )
        return
    if not (folder / name).exists():
        contents.trouble("torn", f"{shown(name)} is missing, and with it {len(wanted)} tensors: {few(wanted)}.", _FETCH, name)
        return
    part = open_part(contents, folder / name, open_file)
    if part is None:
        return
    tree = join(contents, part, file=name)
    if isinstance(tree, dict):
        contents.tree.update({key: value for key, value in tree.items() if key != "__metadata__"})
    if not part.troubles:
        _compare_names(contents, name, wanted, [tensor.name for tensor in part.tensors])


def _compare_names(contents: Contents, name: str, wanted: list[str], there: list[str]) -> None:
    missing = sorted(set(wanted) - set(there))
    more = sorted(set(there) - set(wanted))
    if missing:
        words = f"{name} does not hold {len(missing)} tensors that the index says are in it: {few(missing)}."
        contents.trouble("torn", words, "the files are of two different saves: copy them all again", name)
    if more:
        words = f"{name} holds {len(more)} tensors that the index does not name: {few(more)}"
        contents.notes.append(words)


def _compare_size(contents: Contents, index: dict[str, Any]) -> None:
    """Told only where nothing else is wrong: a missing shard makes the size disagree too."""
    facts = index.get("metadata")
    stated = facts.get("total_size") if isinstance(facts, dict) else None
    size = sum(storage.size for storage in contents.storages)
    if isinstance(stated, int | float) and stated != size and not contents.troubles:
        contents.notes.append(f"the index says {stated:,} bytes of tensors; there are {size:,}")
