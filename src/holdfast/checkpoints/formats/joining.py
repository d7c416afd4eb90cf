"""Several files that are one checkpoint become one `Contents`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.checkpoints.contents import Contents, FileInfo, Opaque, TensorInfo
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


def join(whole: Contents, part: Contents, *, file: str, key: str = "") -> Any:
    """Add what a part holds to the whole, and return its tree as it belongs into the tree of the whole.

    Names of tensors get `key` put before them; troubles and notes name the `file` that they are about.
    """
    first = len(whole.storages)
    whole.storages += part.storages
    prefix = f"{key}." if key else ""
    whole.tensors += [moved(tensor, prefix, first) for tensor in part.tensors]
    listed = {info.path for info in whole.files}
    whole.files += [info for info in part.files if info.path not in listed]
    whole.troubles += [replace(trouble, text=about(file, trouble.text), where=file) for trouble in part.troubles]
    whole.notes += [about(file, note) for note in part.notes]
    add_new(whole.needs_code, part.needs_code)
    add_new(whole.refused, part.refused)
    for name, version in part.versions.items():
        whole.versions.setdefault(name, version)
    return _moved_tree(part.tree, prefix, first)


def about(file: str, message: str) -> str:
    """Words about a file of a folder: "optimizer.pt: it is truncated"."""
    return f"{file}: {message[:1].lower()}{message[1:]}"


def open_part(whole: Contents, path: Path, opener: Callable[[Path], Contents]) -> Contents | None:
    """A file or folder of the whole, opened; None, and told, where the system does not let us read it."""
    try:
        return opener(path)
    except OSError as error:
        denied(whole, error, path.name)
        return None


def add_part(whole: Contents, path: Path, key: str, opener: Callable[[Path], Contents]) -> Any:
    """Open a file or folder of the whole, add what it holds under a key, and return its tree."""
    part = open_part(whole, path, opener)
    return None if part is None else join(whole, part, file=path.name, key=key)


def denied(whole: Contents, error: OSError, file: str) -> None:
    """Tell that the system does not let us read a file of the whole."""
    trouble = no_access(error, file)
    whole.troubles.append(replace(trouble, text=about(file, trouble.text)))


def add_file(whole: Contents, path: Path) -> FileInfo | None:
    """Count a file as part of the checkpoint; None if it cannot be seen."""
    try:
        info = file_info(path)
    except OSError:
        return None
    if all(path != file.path for file in whole.files):
        whole.files.append(info)
    return info


def add_new(names: list[str], new: Iterable[str]) -> None:
    """Add names that are not there yet."""
    names += [name for name in dict.fromkeys(new) if name not in names]


def _moved_tree(old: Any, prefix: str, first: int) -> Any:
    """A plain tree with its tensors moved. It has no circles, and is nowhere deeper than `pickles.DEEPEST`."""

    def new(value: Any) -> Any:
        return _moved_tree(value, prefix, first)

    if isinstance(old, TensorInfo):
        return moved(old, prefix, first)
    if isinstance(old, dict):
        return {key: new(value) for key, value in old.items()}
    if isinstance(old, list | tuple):
        return type(old)(map(new, old))
    return replace(old, arguments=new(old.arguments), state=new(old.state)) if isinstance(old, Opaque) else old
