"""What is said about files that torch.save wrote: troubles in words, and what to do next."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from holdfast.checkpoints.contents import Contents, FileInfo, Storage, TensorInfo, Trouble
from holdfast.checkpoints.formats.files import OLDER, few
from holdfast.checkpoints.pickles import TOO_MUCH, Unpickled
from holdfast.units import size

_JUST_NOW = 10.0  # seconds in which a save may still go on


def cut_short(info: FileInfo, *, expected: int | None = None, without: str = "its end", rest: str = "") -> Trouble:
    """A file that ends too early. One that was written a moment ago may still be growing."""
    is_short = expected is not None and expected > info.size
    ends = f"The file ends after {size(info.size, expected if is_short else None)}" + ("" if is_short else f", without {without}")
    age = time.time() - info.modified
    if 0 <= age < _JUST_NOW:
        message = f"{ends}, and was written to {age:.0f} s ago: it is still being saved, or the save was just interrupted{rest}."
        return Trouble("torn", message, "wait until the save is done, then look again")
    return Trouble("torn", f"{ends}: the save was interrupted, the disk was full, or it was not copied in full{rest}.", OLDER)


def unsafe(names: Sequence[str], *, damaged: bool = False) -> Trouble:
    """A file that asks for what is on no list of harmless names. In damaged bytes a name may also be one by accident."""
    message = f"It asks for {few(list(names))}, not known to be safe: loading it can run a program on your machine"
    perhaps = ", unless the name is only the damage" if damaged else ""
    return Trouble(
        "unsafe", f"{message}{perhaps}.", "do not load it with weights_only=False; get it again from a source you trust"
    )


def not_followed(contents: Contents, problem: str, *, where: str = "") -> None:
    """Tell of a pickle that makes no sense to us. One with a trainer in it may only lead back to itself: that is a note."""
    if problem == TOO_MUCH:
        contents.notes.append(f"not all tensors in it were looked at: {problem}")
        return
    fix = "it was overwritten or is not a checkpoint: copy it again, or use an older one"
    contents.trouble("unreadable", f"Its pickle cannot be parsed: {problem}.", fix, where)


def take(contents: Contents, unpickled: Unpickled, storages: list[Storage]) -> None:
    """Take over what the pickle of a file says of its tree and its tensors, which lie in these storages."""
    contents.tree, contents.tensors = unpickled.tree, unpickled.tensors
    contents.storages = _name_kinds(storages, unpickled.tensors)
    contents.versions.update(_versions_in(unpickled.tree))


def _name_kinds(storages: list[Storage], tensors: Sequence[TensorInfo]) -> list[Storage]:
    """Newer torch writes storages without a kind; they are of the kind of their tensors, if these agree."""
    kinds: dict[int, set[str]] = {}
    for tensor in tensors:
        kinds.setdefault(tensor.storage, set()).add(tensor.dtype)
    return [
        replace(storage, dtype=next(iter(kinds[at]))) if len(kinds.get(at, ())) == 1 else storage
        for at, storage in enumerate(storages)
    ]


def too_short(contents: Contents, compressed: Collection[str] = ()) -> Trouble | None:
    """The trouble of tensors that need more bytes than their storage has; of a compressed one the length says nothing."""
    stored = ((tensor, contents.storages[tensor.storage]) for tensor in contents.tensors)
    short = [tensor.name for tensor, storage in stored if tensor.span[1] > storage.size and storage.name not in compressed]
    if not short:
        return None
    message = f"{'A tensor is' if len(short) == 1 else f'{len(short):,} tensors are'} incomplete: {few(short)}."
    return Trouble("torn", message, OLDER, short[0])


def refuse_big_endian(contents: Contents) -> None:
    """Numbers in the byte order of another kind of machine are not looked at, so none of them is called good."""
    contents.tensors = []
    contents.trouble("unreadable", "Its numbers are stored in big-endian order.", "load it and save it again with torch.save")


def _versions_in(tree: Any) -> dict[str, str]:
    """The versions that a checkpoint tells itself, at the top of its tree."""
    if not isinstance(tree, dict):
        return {}
    texts = {key: value for key, value in tree.items() if isinstance(key, str) and isinstance(value, str) and len(value) < 50}
    return {
        key.removesuffix("_version").removeprefix("pytorch-"): value for key, value in texts.items() if key.endswith("_version")
    }
