"""Find the checkpoints in a folder, each once: what belongs to one is not listed beside it."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from holdfast.checkpoints.formats.folders import SPARE, UNFINISHED, belongs, folder_kind
from holdfast.checkpoints.formats.kinds import SUFFIXES

MOST_ENTRIES = 300_000  # names that are looked at before the search ends
DEEPEST = 24  # folders within folders

NEVER = {"site-packages", "node_modules", "__pycache__"}  # the first holds .pth files that are none
_PART = re.compile(r"^(pytorch_model.*|model.*|consolidated.*)\.bin$")
_DIGITS = re.compile(r"(\d+)")
_LAST = (2, 0, "")  # comes after each name: what lies in a folder is listed before the folder


class _Inside(NamedTuple):
    """What lies in one folder: checkpoints, folders to look into, and links to look at when all else is done."""

    checkpoints: list[Path]
    folders: list[Path]
    links: list[Path]


@dataclass(slots=True)
class Found:
    """What was found, and whether the search came to its end."""

    paths: list[Path] = field(default_factory=list)
    complete: bool = True
    looked_at: int = 0


def find_checkpoints(folder: Path, *, unfinished: bool = False) -> list[Path]:
    """The checkpoints in a folder and all below it, by path, "step-9" before "step-10"; the folder itself, if it is one.

    With `unfinished` also what a save or a download left half done: Holdfast's spare folders, `*.tmp`, `*.part`, `*.incomplete`.
    """
    return search(folder, unfinished=unfinished).paths


def search(folder: Path, *, unfinished: bool = False, most: int = MOST_ENTRIES) -> Found:
    """As `find_checkpoints`, but says whether it had to end early. What cannot be read is left out.

    Links are followed last, and lead nowhere twice: `runs/latest` does not list a run again.
    """
    found = Found()
    seen: set[tuple[int, int]] = set()
    folders: deque[tuple[Path, int]] = deque([(folder, 0)])
    links: deque[tuple[Path, int]] = deque()
    while folders or links:
        path, depth = folders.popleft() if folders else links.popleft()
        if not _is_new(path, seen):
            continue
        if not path.is_dir():
            found.paths.append(path)
            continue
        listing = _listing(path, found, most)
        inside = _one_folder(path, listing, seen, unfinished=unfinished)
        found.paths += inside.checkpoints
        if depth >= DEEPEST and (inside.folders or inside.links):
            found.complete = False
            continue
        folders.extend((one, depth + 1) for one in inside.folders)
        links.extend((one, depth + 1) for one in inside.links)
    found.paths.sort(key=by_path)
    return found


def by_path(path: Path) -> tuple[list[tuple[int, int, str]], ...]:
    """A key for sorting: by path, numbers by their value, and a folder after what lies in it."""
    parts = [
        [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _DIGITS.split(name) if part] for name in path.parts
    ]
    return (*parts, [_LAST])


def _one_folder(path: Path, inside: list[os.DirEntry[str]], seen: set[tuple[int, int]], *, unfinished: bool) -> _Inside:
    """Sort out what is a checkpoint in one folder, and what is to be looked into."""
    kind = folder_kind(path.name, {entry.name for entry in inside})
    result = _Inside([path] if kind is not None else [], [], [])
    for entry in inside:
        folder = is_folder(entry)
        if belongs(kind, entry.name) or not (folder or _is(entry, os.DirEntry.is_file)):
            continue
        if not (_is_open if folder else _is_wanted)(entry.name, unfinished=unfinished):
            continue
        if entry.is_symlink():
            result.links.append(Path(entry.path))
        elif folder:
            result.folders.append(Path(entry.path))
        else:
            _is_new(Path(entry.path), seen)
            result.checkpoints.append(Path(entry.path))
    return result


def _is_open(name: str, *, unfinished: bool) -> bool:
    """Whether to look into a folder."""
    if SPARE.match(name):
        return unfinished
    return not name.startswith(".") and name not in NEVER


def _is_wanted(name: str, *, unfinished: bool) -> bool:
    low = name.lower()
    if low.endswith((*SUFFIXES, ".pth.tar")) or _PART.match(low):
        return not name.startswith(".") or unfinished
    return unfinished and bool(UNFINISHED.match(name))


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder, or a link to one; a link to itself is none."""
    return _is(entry, os.DirEntry.is_dir)


def _is(entry: os.DirEntry[str], what: Callable[[os.DirEntry[str]], bool]) -> bool:
    try:
        return what(entry)
    except OSError:
        return False


def _is_new(path: Path, seen: set[tuple[int, int]]) -> bool:
    """Whether a file or folder is met for the first time, whatever its name."""
    try:
        facts = path.stat()
    except OSError:
        return False
    key = (facts.st_dev, facts.st_ino)
    if key in seen:
        return False
    seen.add(key)
    return True


def _listing(path: Path, found: Found, most: int) -> list[os.DirEntry[str]]:
    """What lies in a folder; of more than may be looked at, the first."""
    try:
        with os.scandir(path) as entries:
            inside = list(islice(entries, max(0, most - found.looked_at)))
            found.complete = found.complete and next(entries, None) is None
    except OSError:
        return []
    found.looked_at += len(inside)
    return sorted(inside, key=lambda entry: entry.name)
