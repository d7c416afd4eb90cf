"""Write a checkpoint whole or not at all, and read it back without running what is inside.

checkpoints/step-000123/
  weights.pt       one file for each part, written by `torch.save`, of plain containers and tensors only
  training.pt
  manifest.json    written last, with the size and SHA-256 of each file: a folder without it is no checkpoint

Everything is written into a folder beside it, forced to the disk, and renamed. A crash or a full disk leaves the checkpoints
that were there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch

from holdfast.errors import StorageError

FORMAT = 1
MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d+)$")
_BEST = "best.json"
_SPARE = 64 << 20  # bytes that are left free on the disk


def folder_of(step: int) -> str:
    """Name of the folder of a step's checkpoint."""
    return f"step-{step:06d}"


def write_checkpoint(parent: Path, step: int, parts: Mapping[str, Any], *, size: int = 0, **facts: Any) -> Path:
    """Write `parts` (file name without its end: content) as the checkpoint of a step; `facts` go into the manifest.

    `size` is about how many bytes it will take: too full a disk is refused before anything is written. Raises StorageError.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _refuse_full_disk(parent, size)
        final, spare = parent / folder_of(step), parent / f".{folder_of(step)}.{os.getpid()}"
        shutil.rmtree(spare, ignore_errors=True)
        try:
            spare.mkdir()
            files = {f"{name}.pt": _write_part(spare / f"{name}.pt", content) for name, content in parts.items()}
            manifest = {"format": FORMAT, "step": step, "time": time.time(), "torch": torch.__version__, **facts, "files": files}
            _write_text(spare / MANIFEST, json.dumps(manifest, indent=1, default=str) + "\n")
            _sync_folder(spare)
            _move(spare, final)
            _sync_folder(parent)
        finally:
            shutil.rmtree(spare, ignore_errors=True)
    except (OSError, RuntimeError) as error:  # torch's writer reports a full disk as RuntimeError
        raise StorageError(
            f"The checkpoint of step {step} could not be written to {parent}: {error}",
            fix="free some space, or name another folder",
        ) from error
    return final


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a checkpoint; None if the folder is not a whole one."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        sizes = {name: int(facts["size"]) for name, facts in manifest["files"].items()}
        whole = all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return manifest if whole else None


def read_checkpoint(folder: Path, *, verify: bool = True) -> dict[str, Any]:
    """The parts of a checkpoint, on the host. Raises StorageError if it is torn or does not match its manifest."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise StorageError(
            f"{folder} is not a whole checkpoint: its manifest is missing or a file is shorter than it says.",
            fix="use an older one; each that is whole has a manifest.json",
        )
    parts = {}
    for name, facts in manifest["files"].items():
        if verify and digest_of(folder / name) != facts["sha256"]:
            raise StorageError(f"{folder / name} does not match its manifest.", fix="use an older checkpoint")
        parts[name.removesuffix(".pt")] = torch.load(folder / name, map_location="cpu", weights_only=True)
    return parts


def list_checkpoints(parent: Path) -> list[Path]:
    """The whole checkpoints in a folder, oldest step first."""
    with contextlib.suppress(OSError):
        found = [(int(match[1]), path) for path in parent.iterdir() if (match := _NAME.match(path.name))]
        return [path for _, path in sorted(found) if read_manifest(path) is not None]
    return []


def mark_best(folder: Path, value: float) -> None:
    """Remember a checkpoint as the best one so far: it is kept whatever its age."""
    spare = folder.parent / f".{_BEST}.{os.getpid()}"
    _write_text(spare, json.dumps({"checkpoint": folder.name, "value": value}) + "\n")
    spare.replace(folder.parent / _BEST)


def best_checkpoint(parent: Path) -> Path | None:
    """The checkpoint that was marked as the best, if it is whole."""
    try:
        path = parent / str(json.loads((parent / _BEST).read_text(encoding="utf-8"))["checkpoint"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return path if read_manifest(path) is not None else None


def retain(parent: Path, *, keep: int = 3) -> list[Path]:
    """Remove all but the newest `keep` whole checkpoints and the best; returns what was removed."""
    best = best_checkpoint(parent)
    old = [path for path in list_checkpoints(parent)[: -keep or None] if path != best]
    for path in old:
        with contextlib.suppress(OSError):
            (path / MANIFEST).unlink()  # first: what is half removed must not look whole
        shutil.rmtree(path, ignore_errors=True)
    return old


def digest_of(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


class _Hashed:
    """A file that is hashed while it is written, so that it need not be read again."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._digest, self.size = file, hashlib.sha256(), 0

    def write(self, data: Any) -> int:
        self._digest.update(data)
        self.size += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def facts(self) -> dict[str, Any]:
        return {"size": self.size, "sha256": self._digest.hexdigest()}


def _write_part(path: Path, content: Any) -> dict[str, Any]:
    with path.open("wb") as file:
        hashed = _Hashed(file)
        torch.save(content, hashed)  # type: ignore[arg-type]
        _sync(file)
    return hashed.facts()


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        _sync(file)


def _sync(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Force names to the disk; some file systems have no such thing."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _move(spare: Path, final: Path) -> None:
    """Rename into place; one of the same step that was there goes only after the new one is."""
    if not final.exists():
        spare.replace(final)
        return
    old = final.with_name(f".old-{final.name}.{os.getpid()}")
    shutil.rmtree(old, ignore_errors=True)
    final.replace(old)
    try:
        spare.replace(final)
    except OSError:
        old.replace(final)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _refuse_full_disk(parent: Path, size: int) -> None:
    free = shutil.disk_usage(parent).free
    if size + _SPARE > free:
        raise OSError(f"it takes {size / 1e9:.2f} GB and {free / 1e9:.2f} GB are free")
