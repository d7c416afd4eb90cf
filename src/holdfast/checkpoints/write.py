"""Write a checkpoint whole or not at all.

Everything is written into a spare folder beside it and forced to the disk, the manifest last; then the folder gets its name. A
crash, a full disk or a second save of the same step leaves the checkpoints that were there.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import numpy as np
import torch

from holdfast import units
from holdfast.checkpoints import spare
from holdfast.checkpoints.manifest import FORMAT, MANIFEST, free_name, next_number, read_manifest
from holdfast.checkpoints.safetensors import PIECE, Tensors, count, write_safetensors
from holdfast.errors import DiskFull, StorageError
from holdfast.version import __version__

_BEST = "best.json"
_LEFT_FREE = 64 << 20  # bytes that are left free on the disk, if the checkpoint is larger than that
_FORCED = 128 << 20  # bytes after which they are forced to the disk: a burst of gigabytes would hold up all other writing
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_SUCH_THING = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
Moved = Callable[[], None]


def write_checkpoint(
    parent: Path, step: int, parts: Mapping[str, Any], *, size: int = 0, moved: Moved = lambda: None, **facts: Any
) -> Path:
    """Write `parts` (file name without its end: content) as the checkpoint of a step; `facts` go into the manifest.

    `Tensors` become a safetensors file, everything else one that `torch.load` reads. `size` is about how many bytes it will take:
    too full a disk is refused before anything is written. `moved` is called as it goes on. Raises StorageError, and DiskFull.
    """
    folder = begin_checkpoint(parent, step, size=size)
    try:
        return finish_checkpoint(folder, step, parts, moved=moved, **facts)
    finally:
        spare.clear(folder)


def begin_checkpoint(parent: Path, step: int, *, size: int = 0) -> Path:
    """Make the spare folder in which a checkpoint is put together; `spare.clear` it if it does not come about."""
    try:
        if not parent.is_dir():
            parent.mkdir(parents=True, exist_ok=True)
            sync_folder(parent.parent)
        spare.clear_abandoned(parent)  # first: a job that dies again and again would fill the disk
        _refuse_full_disk(parent, size)
        folder = parent / spare.spare_name("new", free_name(parent, step))
        folder.mkdir()
    except OSError as error:
        raise _in_words(error, step, parent) from error
    return folder


def finish_checkpoint(
    folder: Path,
    step: int,
    parts: Mapping[str, Any],
    *,
    others: Mapping[str, Any] = MappingProxyType({}),
    moved: Moved = lambda: None,
    **facts: Any,
) -> Path:
    """Write the parts into a spare folder, the manifest last, and give it its name; `others` are files that are there already."""
    parent = folder.parent
    try:
        files = dict(others)
        for name, content in parts.items():
            file = f"{name}.safetensors" if isinstance(content, Tensors) else f"{name}.pt"
            files[file] = _write_part(folder / file, content, moved)
        _write_text(folder / MANIFEST, _manifest(parent, step, facts, files))
        sync_folder(folder)
        final = _give_name(folder, step)
        sync_folder(parent)
    except (OSError, RuntimeError) as error:  # torch's writer reports what the disk says as RuntimeError
        raise _in_words(error, step, parent) from error
    return final


def mark_best(folder: Path, value: float, metric: str | None = None) -> None:
    """Remember a checkpoint as the best one so far: it is kept whatever its age."""
    file = folder.parent / spare.spare_name("new", _BEST)
    try:
        _write_text(file, json.dumps({"checkpoint": folder.name, "metric": metric, "value": value}) + "\n")
        file.replace(folder.parent / _BEST)
    finally:
        file.unlink(missing_ok=True)
    sync_folder(folder.parent)


def best_checkpoint(parent: Path) -> Path | None:
    """The checkpoint that was marked as the best, if it is whole."""
    try:
        path = parent / str(json.loads((parent / _BEST).read_text(encoding="utf-8"))["checkpoint"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return path if read_manifest(path) is not None else None


def named_tensors(content: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in a part of a checkpoint, with the way to each: "optimizers.0.state.3.exp_avg"."""
    if isinstance(content, torch.Tensor):
        yield path, content
    elif isinstance(content, (Tensors, Mapping, list, tuple)):
        if isinstance(content, Tensors):
            content = content.tensors
        items = content.items() if isinstance(content, Mapping) else enumerate(content)
        for name, inner in items:
            yield from named_tensors(inner, f"{path}.{name}" if path else str(name))


def sync_folder(folder: Path) -> None:
    """Force names to the disk; some file systems have no such thing."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SUCH_THING:
            raise
    finally:
        os.close(descriptor)


class _Watched:
    """A file that is checksummed (if asked), and forced to the disk, while it is written; a large piece in many."""

    def __init__(self, file: IO[bytes], moved: Moved, *, summed: bool) -> None:
        self._file, self._moved, self._summed = file, moved, summed
        self.size, self.crc, self._forced = 0, 0, 0

    def write(self, data: Any) -> int:
        whole = memoryview(data).cast("B")
        for at in range(0, whole.nbytes, PIECE):
            piece = whole[at : at + PIECE]
            if self._summed:
                self.crc = zlib.crc32(piece, self.crc)
            done = 0
            while done < piece.nbytes:
                done += self._file.write(piece[done:])
            self.size += piece.nbytes
            self._moved()
            if self.size - self._forced >= _FORCED:
                self._forced = self.size
                _sync(self._file)
        return whole.nbytes

    def flush(self) -> None:
        self._file.flush()


def _write_part(path: Path, content: Any, moved: Moved) -> dict[str, Any]:
    with path.open("wb") as file:
        watched = _Watched(file, moved, summed=not isinstance(content, Tensors))
        if isinstance(content, Tensors):
            facts = write_safetensors(watched.write, content)
        else:
            torch.save(content, watched)  # type: ignore[arg-type]
            counts = {name: count(tensor) for name, tensor in named_tensors(content)}
            facts = {"crc32": f"{watched.crc:08x}", "tensors": {name: {"non_finite": bad} for name, bad in counts.items()}}
        _sync(file)
    return {"size": watched.size, **facts}


def _manifest(parent: Path, step: int, facts: Mapping[str, Any], files: Mapping[str, Any]) -> str:
    """The text of the manifest."""
    versions = {"torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version(), "holdfast": __version__}
    defaults = {
        "epoch": None,
        "time": time.time(),
        "metrics": {},
        "settings": {},
        "versions": versions,
        "rank": 0,
        "world_size": 1,
    }
    first = {"format": FORMAT, "number": next_number(parent), "step": step, **defaults, "run": None, **facts}
    return json.dumps({**first, "files": files}, indent=1, default=str) + "\n"


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        _sync(file)


def _sync(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _give_name(folder: Path, step: int) -> Path:
    """Rename it to the first name of its step that is free; what has one keeps it."""
    while True:
        final = folder.parent / free_name(folder.parent, step)
        try:
            folder.rename(final)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) or not final.exists():
                raise
            continue  # another process was faster
        return final


def _refuse_full_disk(parent: Path, size: int) -> None:
    free, spare = shutil.disk_usage(parent).free, min(_LEFT_FREE, size)
    if size + spare > free:
        needed = f"it takes {units.size(size)} and leaves {units.size(spare)} for other files"
        raise OSError(errno.ENOSPC, f"{needed}, but {units.size(free)} are free")


def _in_words(error: OSError | RuntimeError, step: int, parent: Path) -> StorageError:
    cause = error if isinstance(error, OSError) else error.__cause__ or error.__context__
    full = isinstance(cause, OSError) and cause.errno in _FULL
    kind = DiskFull if full or os.strerror(errno.ENOSPC) in str(error) else StorageError
    return kind(
        f"The checkpoint of step {step} could not be written to {parent}: {error}",
        fix="free some space, or name another folder",
    )
