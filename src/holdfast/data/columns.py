"""The common model of tables, arrays and trees: parts of a set that are read in chunks of rows, never as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.data.listing import word_of_split
from holdfast.data.problem import Fault
from holdfast.data.samples import FormatName

ROWS = 65_536  # of a chunk, at most
BYTES = 32 << 20  # of a chunk, about
Array = npt.NDArray[Any]


class Column(NamedTuple):
    """Some rows of a column: one value a row; a fixed number of them (2-D); or, with `counts`, so many of the flat values."""

    values: Array
    counts: npt.NDArray[np.int64] | None = None

    @property
    def rows(self) -> int:
        """How many rows these are."""
        return len(self.counts if self.counts is not None else self.values)


Chunk = dict[str, Column]


@dataclass(slots=True)
class Part:
    """A piece of a set that is read from beginning to end: a file, or some arrays of the same length."""

    split: str
    file: str
    chunks: Callable[[], Iterator[Chunk]]  # may raise anything where the file is damaged: what was read before counts
    rows: int | None = None  # where that is known before reading
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of a row of arrays that are taken apart into columns


@dataclass(slots=True)
class TableSet:
    """Tables, arrays, trees or a torch data set."""

    format: FormatName
    root: Path
    parts: list[Part]
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    class_names: dict[str, list[str]] = field(default_factory=dict)  # by column: what its numbers stand for

    @property
    def unit(self) -> str:
        """What is counted."""
        return "samples" if self.format == "dataset" else "rows"

    def read(self, progress: Callable[[int, int], None] | None = None) -> Iterator[tuple[Part, int, Chunk]]:
        """Every chunk with its part and the number of its first row there. A part that breaks off is a fault, told once."""
        total, done = sum(part.rows or 0 for part in self.parts), 0
        for part in self.parts:
            first = 0
            try:
                for chunk in filter(None, part.chunks()):
                    yield part, first, chunk
                    rows = next(iter(chunk.values())).rows
                    first, done = first + rows, done + rows
                    if progress:
                        progress(done, max(total, done))
                if not first:
                    raise ValueError("it has no rows")
            except Exception as error:  # noqa: BLE001 - readers raise anything on damaged files
                message = " ".join(str(error).split())[:300] or type(error).__name__
                fault = Fault(_UNREADABLE.get(self.format, "table-unreadable"), part.file, 0, message)
                self.faults += [fault] if fault not in self.faults else []

    def class_name(self, column: str, kind: Any) -> str:
        """What a value of a column of classes stands for."""
        return str(dict(enumerate(self.class_names.get(column, ()))).get(kind, kind))


_UNREADABLE = {"array": "array-unreadable", "root": "tree-unreadable", "dataset": "sample-unreadable"}


def rows_at_once(bytes_a_row: float) -> int:
    """How many rows make a chunk of about 32 MB."""
    return max(1, min(ROWS, int(BYTES / max(bytes_a_row, 1.0))))


def taken(chunk: Chunk, rows: npt.NDArray[np.bool_]) -> Chunk:
    """Only some rows of a chunk."""
    return {name: _some(column, rows) for name, column in chunk.items()}


def _some(column: Column, rows: npt.NDArray[np.bool_]) -> Column:
    if column.counts is None:
        return Column(column.values[rows])
    return Column(column.values[np.repeat(rows, column.counts)], column.counts[rows])


_SPLIT_COLUMNS = ("split", "subset", "partition", "set")


def by_split(split: str, chunk: Chunk) -> Iterator[tuple[str, Chunk]]:
    """The rows of each split. A column that names the split of each row comes before the name of the file."""
    column = next((name for name in chunk if name.lower() in _SPLIT_COLUMNS and chunk[name].values.dtype.kind in "OUS"), None)
    if column is None:
        yield split, chunk
        return
    splits = np.array([str(value) for value in chunk[column].values.tolist()], dtype=object)
    for word in sorted(set(splits.tolist())):
        name = word_of_split(str(word)) or str(word)
        yield name, {key: rows for key, rows in taken(chunk, splits == word).items() if key != column}


_LABELS = ("label", "labels", "target", "targets", "class", "y", "category", "class_id", "class_name")
_TOGETHER = frozenset({"run", "runnumber", "event", "eventnumber", "evt", "lumi", "luminosityblock", "eventid", "runid"})
_KEYS = frozenset(
    {"id", "uid", "uuid", "key", "index", "subject",
     "patient", "user", "session", "group", "study", "series", "participant", "recording", "filename", "path"}
)  # fmt: skip


_ROW_NUMBERS = re.compile(r"|unnamed:? ?\d+|__index_level_\d+__|row_?(?:id|no|nr|num|number)?", re.IGNORECASE)
_FEWEST = 20  # rows, below which a series is chance


def label_column(names: list[str], chosen: str | None) -> str | None:
    """The column with the classes: the one that was named, or one with a usual name."""
    if chosen is not None:
        return chosen if chosen in names else None
    by_word = {name.lower().rsplit(".", 1)[-1]: name for name in reversed(names)}
    return next((by_word[word] for word in _LABELS if word in by_word), None)


def is_key(name: str) -> bool:
    """Whether a name says that its values tell which event, patient or recording a row belongs to."""
    word = _word(name)
    return word in _TOGETHER or word in _KEYS or (word.removesuffix("id") in _KEYS and word != "id")


def numbers_rows(name: str, column: Column) -> bool:
    """Whether a column only numbers the rows: by its name, as pandas writes its index, or by its values, one more in each row."""
    if _ROW_NUMBERS.fullmatch(name.strip()) is not None:
        return True
    values = column.values
    whole = column.counts is None and values.ndim == 1 and values.dtype.kind in "iu" and len(values) >= _FEWEST
    return whole and bool((values[1:] == values[:-1] + 1).all())


def _word(name: str) -> str:
    return name.lower().rsplit(".", 1)[-1].replace("_", "").replace(" ", "")


def key_sets(names: list[str]) -> list[tuple[str, ...]]:
    """Columns that tell together what a row belongs to: run and event are one key, all others are keys of their own."""
    together = tuple(name for name in names if _word(name) in _TOGETHER)
    alone: list[tuple[str, ...]] = [(name,) for name in names if is_key(name) and name not in together]
    return [together, *alone] if any(_word(name).startswith(("ev",)) for name in together) else alone
