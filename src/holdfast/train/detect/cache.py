"""`--cache ram|disk`: the resized images of one split in one file that all workers map, so that each is decoded only once.

The file lies in memory without a name, so it is gone with the last process that uses it, however that ends; or in the cache
folder, where later runs find it again, as long as no image changed. Pixels come first, then the sizes of the original images,
then a fingerprint of what it was made from. On disk it gets its name once it is whole.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import psutil
import torch

from holdfast.data.cache import cache_folder
from holdfast.environment.cgroup import read_limits
from holdfast.errors import DiskFull, StorageError, UsageError
from holdfast.units import size as in_bytes

CacheKind = Literal["ram", "disk"]
Size = tuple[int, int]  # height and width of the original image
Load = Callable[[int], tuple[torch.Tensor, Size]]
Progress = Callable[[int, int], None]

_MOST = 0.8  # fraction of the available memory that the cache may take: the training needs some as well
_SIZES = np.dtype(np.int32)
_STAMP = 32  # characters of a fingerprint


class ImageCache:
    """The images of a cache that is filled. A worker gets the same file, whether it is forked or spawned."""

    def __init__(self, file: IO[bytes], images: int, side: int) -> None:
        self._file, self._images, self._side = file, images, side
        mapped = mmap.mmap(file.fileno(), _length(images, side), access=mmap.ACCESS_READ)
        pixels = images * 3 * side * side
        self._pixels = np.frombuffer(mapped, np.uint8, pixels).reshape(images, 3, side, side)
        self._sizes = np.frombuffer(mapped, _SIZES, 2 * images, pixels).reshape(images, 2)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, Size]:
        """A copy of an image, which may be changed, and the size of the original."""
        height, width = self._sizes[index].tolist()
        return torch.from_numpy(self._pixels[index].copy()), (height, width)

    def __reduce__(self) -> tuple[Any, ...]:
        return _handed_over, (DupFd(self._file.fileno()), self._images, self._side)


def _handed_over(file: Any, images: int, side: int) -> ImageCache:
    return ImageCache(os.fdopen(file.detach(), "rb"), images, side)


def _length(images: int, side: int) -> int:
    return images * (3 * side * side + 2 * _SIZES.itemsize) + _STAMP


def plan_memory(images: int, side: int, *, available: int | None = None) -> None:
    """Refuse a cache in memory that is too large. Each rank of this machine has its own."""
    need = _length(images, side) * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    free = _available() if available is None else available
    if need > _MOST * free:
        raise UsageError(
            f"--cache ram needs {in_bytes(need)} for {images:,} images of {side} × {side} pixels, but only {in_bytes(free)} of "
            f"memory is available, of which {_MOST:.0%} may be used.", fix="--cache disk",
        )  # fmt: skip


def _available() -> int:
    limits, left = read_limits(), int(psutil.virtual_memory().available)
    return left if limits.memory is None else min(left, limits.memory - (limits.memory_used or 0))


def cached_in_memory(images: int, side: int, load: Load, progress: Progress | None = None) -> ImageCache:
    """Load all images into memory."""
    plan_memory(images, side)
    if hasattr(os, "memfd_create"):
        file: IO[bytes] = os.fdopen(os.memfd_create("holdfast-images"), "r+b")
    else:  # not Linux: a file that the system deletes, and keeps in memory while there is room
        file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the cache
    _fill(file, images, side, "", load, progress)
    return ImageCache(file, images, side)


def cached_on_disk(name: str, stamp: str, images: int, side: int, load: Load, progress: Progress | None = None) -> ImageCache:
    """Load all images into the file `name` of the cache folder, unless it is there with the same stamp. One process does it."""
    path = cache_folder() / "images" / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_name(f"{name}.lock")):
            if not _is_whole(path, _length(images, side), stamp):
                _plan_disk(path.parent, _length(images, side))
                _write(path, images, side, stamp, load, progress)
            return ImageCache(path.open("rb"), images, side)
    except OSError as error:
        fix = "set HOLDFAST_CACHE to a folder on a larger disk, or train with --cache false"
        kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
        raise kind(f"the image cache {path} cannot be written: {error.strerror or error}.", fix=fix) from None


def _plan_disk(folder: Path, need: int) -> None:
    free = shutil.disk_usage(folder).free
    if need > free:
        raise OSError(errno.ENOSPC, f"it needs {in_bytes(need)}, but only {in_bytes(free)} is free there")


def _write(path: Path, images: int, side: int, stamp: str, load: Load, progress: Progress | None) -> None:
    new = path.with_name(f"{path.name}.new")
    try:
        with new.open("w+b") as file:
            _fill(file, images, side, stamp, load, progress)
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _fill(file: IO[bytes], images: int, side: int, stamp: str, load: Load, progress: Progress | None) -> None:
    """Threads decode and write: neither needs Python's lock. A write that fails raises, while a full map would kill us."""
    number, pixels, area = file.fileno(), images * 3 * side * side, 3 * side * side

    def write(index: int) -> None:
        image, size = load(index)
        _put(number, image.contiguous().numpy().data, index * area)
        _put(number, np.array(size, _SIZES).data, pixels + index * 2 * _SIZES.itemsize)

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    pool, threads = ThreadPoolExecutor(min(32, cores)), torch.get_num_threads()
    torch.set_num_threads(1)  # or each of our threads would start as many of its own
    try:
        for done, _ in enumerate(pool.map(write, range(images)), 1):
            if progress is not None:
                progress(done, images)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
    _put(number, memoryview(stamp.ljust(_STAMP).encode("ascii")), _length(images, side) - _STAMP)


def _put(file: int, content: memoryview, place: int) -> None:
    if os.pwrite(file, content, place) != content.nbytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _is_whole(path: Path, length: int, stamp: str) -> bool:
    try:
        with path.open("rb") as file:
            end = os.pread(file.fileno(), _STAMP + 1, length - _STAMP)
    except FileNotFoundError:
        return False
    return end == stamp.encode()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait for the other ranks: the first one writes, and the rest find it done."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
