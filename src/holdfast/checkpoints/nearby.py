"""What checkpoints lie near a path that is wrong: most often a folder or a number is off by a little."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from holdfast.checkpoints.formats.files import holds
from holdfast.checkpoints.formats.find import NEVER, is_folder
from holdfast.checkpoints.formats.folders import folder_kind
from holdfast.checkpoints.formats.kinds import SUFFIXES

USUAL = ("checkpoints", "runs", "outputs", "output", "lightning_logs", "weights", "models", "logs")
MOST_FOLDERS = 2_000
MOST_NAMES = 50_000
SECONDS = 1.0  # a search on a slow network share ends then, with what it has
_DEEPEST = 5  # runs/detect/train3/weights/best.pt


def candidates(path: Path, *, here: Path | None = None, most: int = 5, seconds: float = SECONDS) -> list[Path]:
    """Up to `most` checkpoints near a path that is not there: first those of the closest name, then the newest.

    Looked at are the parents of the path that exist, and the usual folders under the current one. Hidden folders are not.
    """
    ends = time.monotonic() + seconds
    here = here or Path.cwd()
    found: dict[tuple[int, int], tuple[Path, float]] = {}
    budget = _Budget(ends)
    for folder in _places(path, here):
        for one in _below(folder, path.name, budget):
            try:
                facts = one.stat()
            except OSError:
                continue
            found.setdefault((facts.st_dev, facts.st_ino), (one, facts.st_mtime))
    ranked = sorted(found.values(), key=lambda item: (-_likeness(path, item[0]), -item[1], str(item[0])))
    return [_short(one, here) for one, _ in ranked[:most]]


class _Budget:
    """How much may still be looked at."""

    def __init__(self, ends: float) -> None:
        self._ends, self._folders, self.names = ends, MOST_FOLDERS, MOST_NAMES
        self.seen: set[tuple[int, int]] = set()

    def allows(self, folder: Path) -> bool:
        """Whether a folder may be looked into: each once, whatever it is called."""
        try:
            facts = folder.stat()
        except OSError:
            return False
        key = (facts.st_dev, facts.st_ino)
        if key in self.seen or self._folders <= 0 or self.names <= 0 or time.monotonic() > self._ends:
            return False
        self.seen.add(key)
        self._folders -= 1
        return True


def _places(path: Path, here: Path) -> Iterator[Path]:
    """Where to look, the most likely first. Of the parents two, and none above here: not all that a disk holds is near."""
    parents = [parent for parent in (here / path).parents if holds(parent.is_dir)][:2]
    above = {here, *here.parents, Path.home()} if "HOME" in os.environ else {here, *here.parents}
    yield from (parent for parent in parents if parent not in above)
    yield from (here / name for name in USUAL)
    yield here


def _below(folder: Path, name: str, budget: _Budget) -> Iterator[Path]:
    """Checkpoints in a folder and below, those on top first."""
    level = [folder]
    for _ in range(_DEEPEST):
        deeper: list[Path] = []
        for one in level:
            if budget.allows(one):
                yield from _in_one(one, name, deeper, budget)
        level = deeper


def _in_one(folder: Path, name: str, deeper: list[Path], budget: _Budget) -> Iterator[Path]:
    """The checkpoints in one folder; of one that is a checkpoint as a whole the file that was asked for, if it is there."""
    try:
        with os.scandir(folder) as entries:
            inside = list(islice(entries, budget.names))
    except OSError:
        return
    budget.names -= len(inside)
    names = {entry.name for entry in inside}
    if folder_kind(folder.name, names):
        yield folder / name if name in names else folder
    else:
        yield from (
            Path(entry.path) for entry in inside if entry.name.lower().endswith(SUFFIXES) and not entry.name.startswith(".")
        )
    deeper += [
        Path(entry.path) for entry in inside if not entry.name.startswith(".") and entry.name not in NEVER and is_folder(entry)
    ]


def _likeness(wanted: Path, found: Path) -> float:
    """How alike two paths are, in tenths: the name counts most, then the names of the folders."""
    name = _ratio(wanted.name, found.name)
    folders = _ratio("/".join(wanted.parts[-4:-1]), "/".join(found.parts[-4:-1]))
    return round(10 * (name + 0.3 * folders) / 1.3)


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.lower(), other.lower(), autojunk=False).ratio()


def _short(path: Path, here: Path) -> Path:
    """The path as one would type it here."""
    return path.relative_to(here) if path.is_relative_to(here) else path
