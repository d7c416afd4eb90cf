"""Read a checkpoint of Holdfast's own and compare every byte with its manifest. Nothing inside is run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoints.formats.files import checksum
from holdfast.checkpoints.formats.safetensors_file import open_safetensors
from holdfast.checkpoints.manifest import read_manifest
from holdfast.checkpoints.safetensors import read_safetensors
from holdfast.errors import StorageError


def read_checkpoint(folder: Path, *, verify: bool = True) -> dict[str, Any]:
    """The parts of a checkpoint, on the host, by file name without its end. Raises StorageError if it is torn or damaged.

    Tensors are mapped from the files. A tied weight stands under all its names.
    """
    manifest = verify_checkpoint(folder) if verify else _manifest_of(folder)
    names = [name for name in manifest["files"] if name.endswith((".safetensors", ".pt"))]
    return {name.rpartition(".")[0]: _load(folder / name) for name in names}


def verify_checkpoint(folder: Path, *, from_disk: bool = False, moved: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Read every byte and compare it with the manifest, which is returned. Raises StorageError.

    With `from_disk` what the system still holds in memory is given up first, as far as it can be, so that the disk is asked.
    """
    manifest = _manifest_of(folder)
    for name, facts in manifest["files"].items():
        try:
            if from_disk:
                _let_go(folder / name)
            _verify_file(folder / name, facts, moved)
        except OSError as error:
            raise StorageError(f"{folder / name} cannot be read: {error}", fix="use an older checkpoint") from error
    return manifest


def _verify_file(path: Path, facts: dict[str, Any], moved: Callable[[], None]) -> None:
    if path.suffix == ".safetensors":
        contents = open_safetensors(path)
        places = {info.name: contents.storages[info.storage] for info in contents.tensors}
        if contents.troubles or places.keys() != facts["tensors"].keys():
            _expect(path, "its header", "what it was")
        data = min((place.offset for place in places.values()), default=contents.size)
        _expect(path, checksum(path, 0, data, moved), facts["crc32"])
        for name, place in places.items():
            _expect(path, checksum(path, place.offset, place.size, moved), facts["tensors"][name]["crc32"], f"{name} in ")
    else:
        _expect(path, checksum(path, 0, facts["size"], moved), facts["crc32"])


def _expect(path: Path, actual: str, wanted: str, what: str = "") -> None:
    if actual != wanted:
        raise StorageError(f"{what}{path} does not match its manifest.", fix="use an older checkpoint")


def _load(path: Path) -> Any:
    try:
        if path.suffix == ".pt":
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        content = read_safetensors(path)
        return {**content.tensors, **{tied: content.tensors[kept] for tied, kept in content.tied.items()}}
    except StorageError:
        raise
    except Exception as error:  # torch raises of many kinds
        raise StorageError(f"{path} cannot be read: {error}", fix="use an older checkpoint") from error


def _manifest_of(folder: Path) -> dict[str, Any]:
    manifest = read_manifest(folder)
    if manifest is None:
        raise StorageError(
            f"{folder} is not a complete checkpoint: its manifest is missing or a file is shorter than it says.",
            fix="use an older one; each that is whole has a manifest.json",
        )
    return manifest


def _let_go(path: Path) -> None:
    """Have the system forget what it holds of a file."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
