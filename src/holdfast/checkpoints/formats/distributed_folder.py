"""Folders of torch.distributed.checkpoint: an index (`.metadata`, written last), and files with the pieces that the ranks wrote.

The tree is the state that was saved, put together again. A tensor in one piece is a `TensorInfo`; one in several pieces is an
`InPieces` of the whole shape, and each piece, named for its place in the whole ("model.weight[0:4, 0:5]"), is among the tensors.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.checkpoints.contents import Contents, Opaque, TensorInfo, worst
from holdfast.checkpoints.formats.distributed_index import BadItem, DataFile, Entry, Piece, Place, read_index
from holdfast.checkpoints.formats.files import OLDER_OR_COPY, few, shown
from holdfast.checkpoints.formats.joining import InPieces, add_file, add_new, denied, join, open_part
from holdfast.checkpoints.formats.one_file import open_file
from holdfast.checkpoints.formats.torch_words import unsafe
from holdfast.checkpoints.names import ITEM_SIZES

INDEX = ".metadata"


def open_distributed(path: Path) -> Contents:
    """All pieces of a folder as one checkpoint. Raises OSError where the folder cannot be listed."""
    contents = Contents(path=path, format="torch.distributed.checkpoint", tree={})
    names = sorted(entry.name for entry in path.iterdir())
    indexes = [name for name in names if name == INDEX or (name.startswith("__") and name.endswith(INDEX))]
    for name in names:
        if name in indexes or name.endswith(".distcp"):
            add_file(contents, path / name)
    if not indexes:
        _tell_no_index(contents, names)
        return contents
    used = _Reading(contents).read([INDEX] if INDEX in indexes else indexes)
    _tell_strangers(contents, names, indexes, used)
    _add_meta(contents, names)
    return contents


def _tell_no_index(contents: Contents, names: list[str]) -> None:
    half = " It was just being written." if any(name.endswith(f"{INDEX}.tmp") for name in names) else ""
    message = f"The folder has no index ({INDEX}): the save was interrupted before the end.{half}"
    contents.trouble("torn", message, OLDER_OR_COPY, INDEX)


class _Reading:
    """The pieces that an index names, or, where each rank has an index of its own, all of them."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self.missing: dict[str, list[str]] = defaultdict(list)  # file: what is lost with it
        self.cut: dict[str, list[tuple[str, int]]] = defaultdict(list)  # file: what is not whole, and where it should end
        self.bad: dict[str, list[tuple[str, BadItem]]] = defaultdict(list)  # file: what is not what the index says, and why
        self.sizes = {info.path.name: info.size for info in contents.files}
        self.files: dict[str, DataFile | OSError] = {}

    def read(self, names: list[str]) -> set[str]:
        """Read all that the indexes name; returns the files that they name."""
        entries = _together(entry for name in names for entry in self._index(name))
        try:
            leaves = [(entry.path, self._entry(entry)) for entry in entries]
        finally:
            for file in self.files.values():
                if isinstance(file, DataFile):
                    file.close()
        self.contents.tree.update(nested(leaves))
        self._tell()
        return {piece.place.file for entry in entries for piece in entry.pieces if piece.place}

    def _index(self, name: str) -> list[Entry]:
        """What an index says; what is wrong with it becomes a trouble."""
        contents = self.contents
        try:
            index = read_index(contents.path / name)
        except OSError as error:
            denied(contents, error, name)
            return []
        add_new(contents.needs_code, index.needs_code)
        self._refuse(index.refused)
        if index.version:
            contents.versions["torch.distributed.checkpoint"] = index.version
        if index.cut:
            contents.trouble("torn", f"The index ({name}) is truncated: the save was interrupted.", OLDER_OR_COPY, name)
        elif index.problem:
            contents.trouble("unreadable", f"The index ({name}) cannot be parsed: {index.problem}.", OLDER_OR_COPY, name)
        return index.entries

    def _refuse(self, names: Iterable[str]) -> None:
        new = [name for name in names if name not in self.contents.refused]
        if new:
            add_new(self.contents.refused, new)
            self.contents.troubles.append(unsafe(new))

    def _entry(self, entry: Entry) -> Any:
        """The leaf of the tree for an entry; whatever is wrong with its pieces is noted."""
        if entry.dtype is None:
            return self._object(entry)
        pieces = [(piece, info) for piece in entry.pieces if (info := self._piece(entry, piece))]
        covered = sum(math.prod(piece.shape) for piece in entry.pieces)
        if covered != math.prod(entry.shape):
            self.bad[INDEX].append((entry.name, BadItem("its pieces do not cover the whole tensor")))
        infos = tuple(info for _, info in pieces)
        self.contents.tensors += infos
        if len(infos) == 1 and infos[0].shape == entry.shape:
            return infos[0]
        if not infos:
            return Opaque("torch.Tensor", (entry.dtype, entry.shape))
        begins = tuple(piece.begin for piece, _ in pieces)
        return InPieces(entry.name, entry.dtype, entry.shape, infos[0].storage, pieces=infos, begins=begins)

    def _piece(self, entry: Entry, piece: Piece) -> TensorInfo | None:
        whole = len(entry.pieces) == 1 and piece.shape == entry.shape
        spans = ", ".join(f"{begin}:{begin + size}" for begin, size in zip(piece.begin, piece.shape, strict=False))
        name = entry.name if whole else f"{entry.name}[{spans}]"
        if piece.place is None:
            if math.prod(piece.shape):
                self.bad[INDEX].append((name, BadItem("the index does not say where it is")))
            return None
        try:
            file = self._file(piece.place, name)
            return self._tensor(file, piece.place, entry, piece, name) if file else None
        except BadItem as error:
            self.bad[piece.place.file].append((name, error))
        return None

    def _tensor(self, file: DataFile, place: Place, entry: Entry, piece: Piece, name: str) -> TensorInfo:
        storages = self.contents.storages
        size = math.prod(piece.shape) * ITEM_SIZES.get(entry.dtype or "", 0)
        if not file.is_archive(place.offset):
            storages.append(file.in_block(place.offset, entry.name, size, entry.dtype or ""))
            return TensorInfo(name, entry.dtype or "", piece.shape, len(storages) - 1)
        item = file.item(place.offset, place.length)
        self._take(item.unpickled)
        info = item.unpickled.tree
        if not isinstance(info, TensorInfo) or info.shape != piece.shape or info.dtype != entry.dtype:
            raise BadItem("the content differs from the index: the files are from two different saves")
        storages += [replace(storage, dtype=storage.dtype or info.dtype) for storage in item.storages]
        return replace(info, name=name, storage=info.storage + len(storages) - len(item.storages))

    def _object(self, entry: Entry) -> Any:
        """What was saved as an object, with the tensors in it."""
        place = entry.pieces[0].place
        if place is None:
            self.bad[INDEX].append((entry.name, BadItem("the index does not say where it is")))
            return None
        try:
            file = self._file(place, entry.name)
            item = file.item(place.offset, place.length) if file else None
        except BadItem as error:
            self.bad[place.file].append((entry.name, error))
            return None
        if item is None:
            return None
        self._take(item.unpickled)
        part = Contents(
            path=self.contents.path, format="", storages=item.storages, tensors=item.unpickled.tensors, tree=item.unpickled.tree
        )
        return join(self.contents, part, file=place.file, key=entry.name)

    def _take(self, unpickled: Any) -> None:
        self._refuse(unpickled.refused)
        add_new(self.contents.needs_code, unpickled.needs_code)
        if unpickled.problem:
            raise BadItem(f"the pickle there cannot be parsed: {unpickled.problem}", "torn" if unpickled.cut else "unreadable")

    def _file(self, place: Place, name: str) -> DataFile | None:
        """The file that a place is in, if it is there and long enough."""
        if place.file not in self.sizes or "/" in place.file:
            self.missing[place.file].append(name)
            return None
        if place.offset + place.length > self.sizes[place.file]:
            self.cut[place.file].append((name, place.offset + place.length))
            return None
        if place.changed:
            self.contents.notes.append(f"{shown(name)} was compressed or encrypted by an extension and cannot be checked")
            return None
        if place.file not in self.files:
            try:
                self.files[place.file] = DataFile(self.contents.path / place.file)
            except OSError as error:
                self.files[place.file] = error
                denied(self.contents, error, place.file)
        file = self.files[place.file]
        return file if isinstance(file, DataFile) else None

    def _tell(self) -> None:
        for file, names in self.missing.items():
            message = f"{shown(file)} is missing, and with it {len(names)} tensors and values: {few(names)}."
            self.contents.trouble("torn", message, OLDER_OR_COPY, file)
        for file, short in self.cut.items():
            missing = max(end for _, end in short) - self.sizes[file]
            names = [name for name, _ in short]
            lost = f"{len(names)} tensors and values are incomplete: {few(names)}"
            message = f"{file} is truncated: at least {missing:,} bytes are missing; {lost}."
            self.contents.trouble("torn", message, OLDER_OR_COPY, file)
        for file, wrong in self.bad.items():
            name, error = wrong[0]
            more = f" So it is with {len(wrong) - 1} more." if len(wrong) > 1 else ""
            message = f"{shown(file)}: {shown(name)} is not what the index says: {error}.{more}"
            self.contents.trouble(worst(trouble.state for _, trouble in wrong), message, OLDER_OR_COPY, file)


def _together(entries: Iterable[Entry]) -> list[Entry]:
    """Entries of the same name as one, with the pieces of all ranks."""
    by_name: dict[str, Entry] = {}
    for entry in entries:
        earlier = by_name.get(entry.name)
        if earlier is None:
            by_name[entry.name] = entry
        elif entry.dtype is not None:
            begins = {piece.begin for piece in earlier.pieces}
            more = tuple(piece for piece in entry.pieces if piece.begin not in begins)
            by_name[entry.name] = replace(earlier, pieces=earlier.pieces + more)
    return list(by_name.values())


def _tell_strangers(contents: Contents, names: list[str], indexes: list[str], used: set[str]) -> None:
    """Files that the index does not name, and data that is newer than the index: of another save, perhaps."""
    strangers = [name for name in names if name.endswith(".distcp") and name not in used]
    if strangers and not contents.troubles:
        contents.notes.append(
            f"the index does not name {few(strangers)}: left behind by an earlier save with more ranks, perhaps"
        )
    times = {info.path.name: info.modified for info in contents.files}
    index = max(times.get(name, 0.0) for name in indexes)
    newer = [name for name, modified in times.items() if modified > index + 60]
    if newer:
        contents.notes.append(
            f"{few(newer)} changed after the index was written: a later save into this folder may not have finished"
        )


def _add_meta(contents: Contents, names: list[str]) -> None:
    """Lightning keeps what is not sharded in a file beside the pieces."""
    part = open_part(contents, contents.path / "meta.pt", open_file) if "meta.pt" in names else None
    if part is None:
        return
    contents.tree["meta"] = join(contents, part, file="meta.pt", key="meta")
    contents.producer = part.producer


def nested(leaves: Iterable[tuple[tuple[str | int, ...], Any]]) -> dict[Any, Any]:
    """A dict of dicts and lists: a container whose keys are the numbers from zero on is a list.

    Where two leaves exclude each other, as no state has it, both stay, one under its joined name.
    """
    root: dict[Any, Any] = {}
    made: dict[int, dict[Any, Any]] = {id(root): root}  # those that are containers, and no leaf that is a dict
    for path, leaf in leaves:
        at = root
        for number, part in enumerate(path[:-1]):
            if part not in at:
                at[part] = {}
                made[id(at[part])] = at[part]
            if id(at[part]) not in made:
                path = (*path[:number], ".".join(map(str, path[number:])))
                break
            at = at[part]
        key = path[-1]
        at[key if key not in at else ".".join(map(str, path))] = leaf
    return {key: _with_lists(value, made) for key, value in root.items()}


def _with_lists(value: Any, made: dict[int, dict[Any, Any]]) -> Any:
    if id(value) not in made:
        return value
    plain = {key: _with_lists(part, made) for key, part in value.items()}
    if plain and all(type(key) is int for key in plain) and set(plain) == set(range(len(plain))):
        return [plain[number] for number in range(len(plain))]
    return plain
