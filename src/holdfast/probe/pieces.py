"""The files of one table on disk: segments that are still raw, and those that were turned into Parquet.

A number has one file, `000003.seg` or `000003.parquet`; both for a moment, and then the Parquet file counts: it got
its name only when it was complete. The compactor may turn a segment around between our looking and our opening.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import DamagedSegment
from holdfast.signals.segment import HEADER_BYTES, MAGIC, SUFFIX, Segment, has_only

PARQUET = ".parquet"


@dataclass(slots=True)
class Pieces:
    """A table's files, opened: rows published after that are not in it."""

    segments: list[tuple[int, Segment]] = field(default_factory=list)
    parquet: list[tuple[int, Path]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    half_made: bool = False

    @property
    def growing(self) -> bool:
        """Whether a writer has not sealed the table (it writes still, or it was killed)."""
        return self.half_made or any(not segment.sealed for _, segment in self.segments)


def table_names(folder: Path) -> list[str]:
    """The tables that have files in the folder of a recording."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except OSError:
        return []


def segment_numbers(folder: Path) -> list[int]:
    """Numbers that may have a file, in order.

    A listing made while a file is renamed can miss both names, so the gaps, and one number more, are part of it.
    """
    listed = _listed(folder)
    return list(range(max(listed) + 2)) if listed else []


def num_segments(folder: Path) -> int:
    """How many segments are still raw."""
    return sum(kind == SUFFIX for kind in _listed(folder).values())


def _listed(folder: Path) -> dict[int, str]:
    """The kind of file that each number has; of two the Parquet file."""
    try:
        names = sorted(os.listdir(folder), reverse=True)  # noqa: PTH208 - thousands of folders; so .seg is before .parquet
    except OSError:
        return {}
    parts = (os.path.splitext(name) for name in names)  # noqa: PTH122
    return {int(stem): kind for stem, kind in parts if kind in (SUFFIX, PARQUET) and stem.isdigit()}


def parquet_path(folder: Path, number: int) -> Path:
    """The Parquet file of a table's n-th segment."""
    return folder / f"{number:06d}{PARQUET}"


def half_made(path: Path) -> bool:
    """Whether a segment's writer has not finished its header; such a file holds no rows."""
    with path.open("rb") as file:
        magic = file.read(len(MAGIC))
        size = os.fstat(file.fileno()).st_size
    return size < HEADER_BYTES or magic == bytes(len(MAGIC))


def open_pieces(folder: Path) -> Pieces:
    """Open all files of a table, oldest first."""
    pieces = Pieces()
    listed = _listed(folder)
    last = max(listed, default=-1)
    newest = last + 1 if last >= 0 and _exists(folder, last + 1) else last
    for number in range(newest + 1):
        kind = listed.get(number)
        if kind == PARQUET:
            pieces.parquet.append((number, parquet_path(folder, number)))
        elif kind == SUFFIX and number and has_only(f"{folder}/{number:06d}{SUFFIX}", 0):
            pieces.half_made = True  # made ready, and not used yet
        else:
            _open_one(pieces, folder, number, is_newest=number >= newest, is_raw=kind == SUFFIX)
    return pieces


def newest_raw(folder: Path) -> str | None:
    """The newest segment that has rows, if it is still raw: what most of thousands of ranks have. None: look at all files."""
    for number, kind in sorted(_listed(folder).items(), reverse=True):
        path = f"{folder}/{number:06d}{SUFFIX}"
        if kind != SUFFIX or not has_only(path, 0):  # else it was made ready, and is not used yet
            return path if kind == SUFFIX else None
    return None


def newest_first(folder: Path) -> Iterator[tuple[int, Segment | Path]]:
    """Open the files of a table one by one, newest first: who needs only the last rows opens only the last files."""
    for number in reversed(segment_numbers(folder)):
        pieces = Pieces()
        _open_one(pieces, folder, number, is_newest=True)
        yield from pieces.segments
        yield from pieces.parquet


def _open_one(pieces: Pieces, folder: Path, number: int, *, is_newest: bool, is_raw: bool = False) -> None:
    """`is_raw`: a listing has just shown that there is no Parquet file."""
    parquet, path = parquet_path(folder, number), folder / f"{number:06d}{SUFFIX}"
    if not is_raw and parquet.exists():
        pieces.parquet.append((number, parquet))
        return
    try:
        pieces.segments.append((number, Segment(path)))
    except (FileNotFoundError, DamagedSegment) as error:
        if parquet.exists():  # it was turned around just now
            pieces.parquet.append((number, parquet))
        elif isinstance(error, DamagedSegment):
            _note_damage(pieces, path, error, is_newest=is_newest)
    except OSError as error:
        pieces.warnings.append(f"{path} cannot be read: {error.strerror}.")


def _note_damage(pieces: Pieces, path: Path, error: DamagedSegment, *, is_newest: bool) -> None:
    try:
        unfinished = half_made(path)
    except OSError:
        unfinished = False
    if is_newest and unfinished:
        pieces.half_made = True
    else:
        pieces.warnings.append(error.problem)


def _exists(folder: Path, number: int) -> bool:
    return parquet_path(folder, number).exists() or (folder / f"{number:06d}{SUFFIX}").exists()
