"""Several files that are one checkpoint become one `Contents`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.checkpoints.contents import Contents, FileInfo, Opaque, State, TensorInfo, Trouble
from holdfast.checkpoints.formats.files import file_info, no_access


@dataclass(frozen=True, slots=True)
class InPieces(TensorInfo):
    """A tensor of the whole shape; its `storage` is that of the first piece, and holds no more than that piece."""

    pieces: tuple[TensorInfo, ...] = ()
    begins: tuple[tuple[int, ...], ...] = ()  # where each piece begins in the whole


def moved(tensor: TensorInfo, prefix: str, first: int) -> TensorInfo:
    """The tensor in a larger checkpoint: under a longer name, its storages behind others."""
    new = replace(tensor, name=prefix + tensor.name, storage=tensor.storage + first)
    if isinstance(new, InPieces):
        return replace(new, pieces=tuple(moved(piece, prefix, first) for piece in new.pieces))
    return new


_OF_A_FILE = ("format", "layout")  # versions of one file's form, not of the checkpoint


def join(whole: Contents, part: Contents, *, file: str, key: str = "") -> Any:
    """Add what a part holds to the whole, and return its tree as it belongs into the tree of the whole.

    Names of tensors get `key` put before them; troubles and notes name the `file` that they are about.
    """
    first = len(whole.storages)
    whole.storages += part.storages
    prefix = f"{key}." if key else ""
    whole.tensors += [moved(tensor, prefix, first) for tensor in part.tensors]
    known = {info.path for info in whole.files}
    whole.files += [info for info in part.files if info.path not in known]
    whole.troubles += [replace(trouble, words=about(file, trouble.words), where=file) for trouble in part.troubles]
    whole.notes += [about(file, note) for note in part.notes]
    add_new(whole.needs_code, part.needs_code)
    add_new(whole.refused, part.refused)
    for name, version in part.versions.items():
        if name not in _OF_A_FILE:
            whole.versions.setdefault(name, version)
    try:
        return _Moved(prefix, first).tree(part.tree)
    except RecursionError:
        whole.notes.append(about(file, "what it holds is nested too deeply to be shown"))
        return None


def about(file: str, words: str) -> str:
    """Words about a file of a folder: "optimizer.pt: it is cut short"."""
    return f"{file}: {words[:1].lower()}{words[1:]}"


def open_part(whole: Contents, path: Path, opener: Callable[[Path], Contents]) -> Contents | None:
    """A file or folder of the whole, opened; None, and told, where the system does not let us read it."""
    try:
        return opener(path)
    except OSError as error:
        denied(whole, error, path.name)
        return None


def denied(whole: Contents, error: OSError, file: str) -> None:
    """Tell that the system does not let us read a file of the whole."""
    told = no_access(error, file)
    whole.troubles.append(replace(told, words=about(file, told.words)))


def add_file(whole: Contents, path: Path) -> FileInfo | None:
    """Count a file as part of the checkpoint; None if it cannot be seen."""
    try:
        info = file_info(path)
    except OSError:
        return None
    if all(path != known.path for known in whole.files):
        whole.files.append(info)
    return info


def trouble(whole: Contents, state: State, words: str, fix: str, where: str = "") -> None:
    """Tell a trouble of the whole."""
    whole.troubles.append(Trouble(state, words, fix, where))


def add_new(known: list[str], new: Iterable[str]) -> None:
    """Add names that are not there yet."""
    known += [name for name in dict.fromkeys(new) if name not in known]


class _Moved:
    """A tree with its tensors replaced. What stands at several places, or inside itself, is made once."""

    def __init__(self, prefix: str, first: int) -> None:
        self._prefix, self._first = prefix, first
        self._made: dict[int, tuple[Any, Any]] = {}  # by id; the old one is held, so that its id stays taken

    def tree(self, old: Any) -> Any:
        if isinstance(old, TensorInfo):
            return moved(old, self._prefix, self._first)
        if not isinstance(old, dict | list | tuple | set | frozenset | Opaque):
            return old
        if id(old) in self._made:
            return self._made[id(old)][1]
        return self._container(old)

    def _container(self, old: Any) -> Any:
        if isinstance(old, dict):
            table = self._keep(old, {})
            table.update((key, self.tree(value)) for key, value in old.items())
            return table
        if isinstance(old, list):
            row = self._keep(old, [])
            row.extend(self.tree(value) for value in old)
            return row
        if isinstance(old, Opaque):
            new = self._keep(old, Opaque(old.name))
            object.__setattr__(new, "arguments", self.tree(old.arguments))
            object.__setattr__(new, "state", self.tree(old.state))
            return new
        if isinstance(old, tuple):
            return self._keep(old, tuple(self.tree(value) for value in old))
        return self._keep(old, old)  # a set holds plain values only

    def _keep(self, old: Any, new: Any) -> Any:
        self._made[id(old)] = (old, new)
        return new
