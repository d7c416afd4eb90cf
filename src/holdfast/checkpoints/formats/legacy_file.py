"""Files of torch.save before 1.6 (or with `_use_new_zipfile_serialization=False`), and bare pickles."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

from holdfast.checkpoints.contents import Contents, Storage
from holdfast.checkpoints.formats.files import OLDER, file_info
from holdfast.checkpoints.formats.torch_words import (
    cut_short,
    not_followed,
    refuse_big_endian,
    take,
    too_short,
    unsafe,
)
from holdfast.checkpoints.pickled.legacy import Legacy
from holdfast.checkpoints.pickled.stack import StorageUse
from holdfast.checkpoints.pickles import TOO_MUCH, Unpickled, read_old

_TAR = "It is a tar archive, as torch wrote before 2017: torch.load would load the pickles in it, and they were not looked at."


def open_legacy(path: Path) -> Contents:
    """What a file of one or more pickles holds: older files of torch.save, and what `pickle.dump` wrote. Raises OSError."""
    contents = Contents(path=path, format="torch legacy", files=[file_info(path)])
    with path.open("rb") as file:
        if _is_tar(file.read(512)):
            contents.trouble("unreadable", _TAR, "load it where you trust it, and save it again with torch.save")
            return contents
        unpickled, legacy = read_old(file, contents.size)
    _take(contents, unpickled, legacy)
    _tell(contents, unpickled, legacy)
    return contents


def _is_tar(head: bytes) -> bool:
    """Whether it is a tar archive, which torch tries first: the same bytes may be a pickle too, and a harmless one."""
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        return False
    return True


def _take(contents: Contents, unpickled: Unpickled, legacy: Legacy) -> None:
    take(contents, unpickled, [_storage(contents.path, use, legacy) for use in unpickled.storages])
    contents.refused, contents.needs_code = unpickled.refused, unpickled.needs_code
    if legacy.bare:
        contents.format = "pickle"
    if any(use.inside and use.offset is None for use in unpickled.storages):
        contents.notes.append("its tensors were written as text by an old protocol of pickle: their numbers cannot be checked")
    if not legacy.little_endian:
        refuse_big_endian(contents)


def _storage(path: Path, use: StorageUse, legacy: Legacy) -> Storage:
    """Where a storage lies; of one that is not there, no byte is."""
    offset, size = (use.offset or 0, use.size or 0) if use.inside else legacy.placed.get(use.key, (0, 0))
    return Storage(path, offset, size, use.dtype, name=f"storage {use.key}")


def _tell(contents: Contents, unpickled: Unpickled, legacy: Legacy) -> None:
    info = contents.files[0]
    if unpickled.cut:
        contents.troubles.append(cut_short(info, expected=legacy.expected, rest=f"; it ends in {legacy.part}"))
    elif unpickled.problem not in (None, TOO_MUCH) and legacy.part.endswith("its storages"):
        contents.trouble("torn", f"Its content and its storages do not match: {unpickled.problem}.", OLDER)
    elif unpickled.problem is not None:
        not_followed(contents, unpickled.problem, where=legacy.part)
    if legacy.bare and unpickled.end < info.size:
        contents.notes.append(f"{info.size - unpickled.end:,} bytes follow its pickle; pickle.load reads only the first")
    short = too_short(contents)
    if short is not None:
        contents.troubles.append(replace(short, fix=contents.troubles[0].fix) if unpickled.cut else short)
    if contents.refused:
        contents.troubles.append(unsafe(contents.refused))
