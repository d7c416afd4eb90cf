"""The files of a data set, listed once. Only what is listed is ever opened, so a label cannot lead out of the folder.

Links are followed where they stay inside the folder (or inside one that the user named); those that lead out are kept apart
and reported, not read.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from holdfast import units
from holdfast.errors import UsageError

# Which split a file belongs to, read from the folders and the name it has.

ALL = "all"  # a set that is not split
_SPLIT_NAMES = {"train": ("train", "training"), "val": ("val", "valid", "validation", "dev", "eval"), "test": ("test", "testing")}
_NAMES = {word: split for split, names in _SPLIT_NAMES.items() for word in names}


def split_named(path: str) -> str:
    """The split that a path names, in a folder or in its file's name (`x_train.npy`, `instances_val2017.json`); else `all`."""
    *folders, name = path.split("/")
    for split in filter(None, map(word_of_split, reversed(folders))):
        return split
    parts = re.split(r"[^A-Za-z]+", name.rpartition(".")[0] or name)
    return next((_NAMES[word.lower()] for word in parts if word.lower() in _NAMES), ALL)


def word_of_split(name: str) -> str | None:
    """The split that a name of a folder or file stands for: train, val or test; `train2017` is one."""
    return _NAMES.get(name.lower().rstrip("0123456789_-"))


def order_of(split: str) -> int:
    """Training first, then validation, then test, then the rest."""
    return list(_SPLIT_NAMES).index(split) if split in _SPLIT_NAMES else 3


IMAGES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".ppm", ".pgm", ".jp2", ".avif", ".mpo"})
NOT_DECODED = frozenset({".heic", ".heif", ".jxl", ".dng", ".cr2", ".nef", ".arw", ".svg", ".psd"})  # images for other programs
_MOST_FILES = 20_000_000
_DEEPEST = 32


class Stamp(NamedTuple):
    """How a file is recognised as unchanged: its size and the time of its last change in nanoseconds."""

    size: int
    time: int


@dataclass(slots=True)
class Listing:
    """All files under a folder: path relative to it (with `/`) to size and time."""

    root: Path
    files: dict[str, Stamp] = field(default_factory=dict)
    outside: list[str] = field(default_factory=list)  # links that lead out of the folder
    broken: list[str] = field(default_factory=list)  # links that lead nowhere, or in a circle
    allowed: tuple[Path, ...] = ()
    _by_ending: dict[str, list[str]] | None = None

    def find(self, path: str, *, relative_to: str = "") -> str | None:
        """The listed file that a path in a label means; None where there is none, or it lies outside."""
        path = path.replace("\\", "/")
        if path.startswith("/") or (len(path) > 1 and path[1] == ":"):
            return self._absolute(path)
        joined = posixpath.normpath(posixpath.join(relative_to, path))
        return joined if joined in self.files else None

    def leads_out(self, path: str, *, relative_to: str = "") -> bool:
        """Whether a path in a label or list means a place outside the folder, whatever is there."""
        path = path.replace("\\", "/")
        if path.startswith("/") or path[1:2] == ":":
            return self._absolute(path) is None
        return posixpath.normpath(posixpath.join(relative_to, path)).startswith("..")

    def _absolute(self, path: str) -> str | None:
        try:
            whole = Path(path).resolve()
            inside = whole.relative_to(self.root).as_posix() if _is_within(whole, self.root) else whole.as_posix()
        except (ValueError, OSError):
            return None
        return inside if inside in self.files else None

    def below(self, folder: str) -> Iterator[str]:
        """The files of a folder and its folders, sorted."""
        start = "" if folder in ("", ".") else folder.rstrip("/") + "/"
        return (path for path in self.files if path.startswith(start))

    def images(self, folder: str = "") -> list[str]:
        """The images of a folder and its folders, sorted."""
        start = "" if folder in ("", ".") else folder.rstrip("/") + "/"
        return [path for path in self.with_suffix(*IMAGES) if path.startswith(start)]

    def named_or_all(self, named: str | None, *endings: str) -> list[str]:
        """The file that was named, if it has one of these endings; all that have one where none was named."""
        return self.with_suffix(*endings) if named is None else [named] if suffix(named) in endings else []

    def with_suffix(self, *endings: str) -> list[str]:
        """The files with one of these endings, sorted."""
        if self._by_ending is None:
            self._by_ending = {}
            for path in self.files:
                self._by_ending.setdefault(suffix(path), []).append(path)
        lists = [self._by_ending[ending] for ending in endings if ending in self._by_ending]
        return lists[0] if len(lists) == 1 else sorted(path for some in lists for path in some)


def suffix(path: str) -> str:
    """The ending of a path in small letters, with its dot."""
    return "." + path.rpartition(".")[2].lower() if "." in path[path.rfind("/") + 1 :] else ""


def stem(path: str) -> str:
    """The name of a file without folder and ending."""
    name = path[path.rfind("/") + 1 :]
    return name.rpartition(".")[0] or name


def listed(root: Path, also: Iterable[Path] = ()) -> Listing:
    """List a folder, or the one file that was named."""
    root = root.resolve()
    listing = Listing(root, allowed=tuple(path.resolve() for path in also))
    if root.is_file():
        listing.root = root.parent
        status = root.stat()
        listing.files[root.name] = Stamp(status.st_size, status.st_mtime_ns)
        return listing
    others = [folder for folder in listing.allowed if folder.is_dir() and not _is_within(folder, root)]
    seen: set[tuple[int, int]] = set()
    walks = [_walk(str(root), "", listing, seen), *(_walk(str(other), f"{other.as_posix()}/", listing, seen) for other in others)]
    listing.files = dict(sorted(itertools.islice(itertools.chain(*walks), _MOST_FILES + 1)))
    listing.outside.sort()
    listing.broken.sort()
    if len(listing.files) > _MOST_FILES:
        raise UsageError(f"{root} holds more than {_MOST_FILES:,} files", fix="validate one part of it at a time")
    return listing


def _walk(folder: str, start: str, listing: Listing, seen: set[tuple[int, int]], depth: int = 0) -> Iterator[tuple[str, Stamp]]:
    """The files of a folder; one that was met before (a link in a circle) is left out, and so are links that lead out."""
    try:
        own = Path(folder).stat()
        if (own.st_dev, own.st_ino) in seen or depth > _DEEPEST:
            return
        seen.add((own.st_dev, own.st_ino))
        entries = list(os.scandir(folder))
    except OSError:
        return
    names = {entry.name for entry in entries}
    if depth and "run.json" in names and names & {"journal.jsonl", "train.log", "rank-0"}:
        return  # a run of Holdfast's: what was recorded is not what is trained on
    for entry in entries:
        if entry.name[0] == "." or entry.name == "__MACOSX":
            continue
        with contextlib.suppress(OSError):
            target = (
                Path(os.path.realpath(entry.path)) if entry.is_symlink() else None
            )  # `resolve` raises where links go in a circle
            if target and not any(_is_within(target, inside) for inside in (listing.root, *listing.allowed)):
                listing.outside.append(start + entry.name)
            elif target and not target.exists():
                listing.broken.append(start + entry.name)
            elif entry.is_dir():
                yield from _walk(entry.path, f"{start}{entry.name}/", listing, seen, depth + 1)
            elif entry.is_file():
                status = entry.stat()
                yield start + entry.name, Stamp(status.st_size, status.st_mtime_ns)


def _is_within(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents


def read_bytes(path: Path | str, *, limit: int) -> bytes:
    """The bytes of a file, or of a member of a tar file (`shard.tar/0001.jpg`); ValueError where those are more than `limit`.

    By the system's own calls: a scan opens two files a sample, and Python's files take twice as long as these.
    """
    file, start, size = _opened(path)
    try:
        if size > limit:
            raise ValueError(f"larger than {units.size(limit)}")
        content = os.pread(file, size, start)
        while len(content) < size and (more := os.pread(file, size - len(content), start + len(content))):
            content += more
        return content
    finally:
        os.close(file)


def read_parts(path: str, *parts: tuple[float, int]) -> list[bytes]:
    """Some bytes of a file: for each part where it begins, as a share of the file, and its length; 1 is the end of the file."""
    file, start, size = _opened(path)
    try:
        places = [(int(share * (size - length * (share == 1))), length) for share, length in parts]
        return [os.pread(file, min(length, size - max(0, place)), start + max(0, place)) for place, length in places]
    finally:
        os.close(file)


def read_text(path: Path | str, *, limit: int) -> str:
    """A text file as UTF-8; bytes that are none become U+FFFD. Longer ones than `limit` are a ValueError."""
    content = read_bytes(path, limit=limit)
    return content.decode("utf-8", errors="replace").removeprefix("\ufeff")


def _opened(path: Path | str) -> tuple[int, int, int]:
    """A file, and where the content begins in it and how long it is: of a member of a tar file, its place there."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return file, 0, os.fstat(file).st_size
    except NotADirectoryError:
        shard, ending, member = str(path).partition(".tar/")
        start, size = tar_members(f"{shard}.tar").get(member, (0, -1)) if ending else (0, -1)
        if size < 0:
            raise
        return os.open(f"{shard}.tar", os.O_RDONLY | os.O_CLOEXEC), start, size


_LONGEST_HEADER = 1 << 20  # bytes of what a tar file says of one member


class _TarFile(io.FileIO):
    """Reads of a tar file's headers: one that claims to be endless is refused."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _LONGEST_HEADER:
            raise ValueError("a header of this tar file is longer than a megabyte")
        return super().read(size)


@functools.lru_cache(maxsize=16)
def tar_members(path: str) -> dict[str, tuple[int, int]]:
    """The files in a tar file: name to place and size. Links, folders and names that lead out of it are not listed.

    ValueError where it is damaged; what is behind the damage is not seen.
    """
    import tarfile

    members: dict[str, tuple[int, int]] = {}
    with _TarFile(path) as file:
        length = Path(path).stat().st_size
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive:
                for member in archive:
                    inside = member.isreg() and not member.issparse() and member.offset_data + member.size <= length
                    if inside and not member.name.startswith(("/", "..")) and "/../" not in member.name:
                        members[member.name.removeprefix("./")] = (member.offset_data, member.size)
                    archive.members.clear()  # type: ignore[attr-defined]
        except (tarfile.TarError, EOFError) as error:
            raise ValueError(f"not a tar file: {error}") from None
    return members
