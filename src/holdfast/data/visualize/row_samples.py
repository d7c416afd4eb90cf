"""Rows of tables, arrays and trees, and samples of a torch data set, chosen and ready to be drawn.

A report says which rows show a problem, by file and row. All rows are read once to choose others by split and class, and once
more to fetch what was chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.data.columns import Chunk, Column, TableSet, by_split, label_column, taken
from holdfast.data.formats.detect import Settings
from holdfast.data.problem import Problem, Report
from holdfast.data.scan import Progress
from holdfast.data.visualize.charts import number
from holdfast.data.visualize.pictures import words_instead
from holdfast.data.visualize.row_drawing import Ranges, draw_row, put_together, row_at
from holdfast.data.visualize.row_drawing import Row as Values
from holdfast.data.visualize.sample import Group, Mark, Sample, Size, Suspects, Wish, chosen, kind_words

if TYPE_CHECKING:
    from PIL import Image

_TOLD = 3
_OF_FILES = frozenset({"table-unreadable", "array-unreadable", "array-pickled", "tree-unreadable"})
_PLACE, _LOT = "\0place", "\0lot"  # columns that are added, so that rows keep both when they are put into splits
_SAMPLED, _KEPT = 256, 8192  # values of a chunk and of a column from which its usual range is told


class Row(NamedTuple):
    """A row of a part of the data."""

    part: int
    place: int


class Fetched(NamedTuple):
    """A row with its split and its values."""

    row: Row
    split: str
    values: dict[str, Any]


class Own(NamedTuple):
    """What is different for samples that are more than their columns: how they are drawn and named.

    `suspects` are those that the report names by something else than a row (asked once all rows were seen), and `sample` makes
    one of them.
    """

    draw: Callable[[Fetched, Values, set[str], Size], Image.Image]
    name: Callable[[Row], str]
    suspects: Callable[[], list[Suspects]]
    sample: Callable[[Hashable], Sample]


class _BadFile(NamedTuple):
    """A file of which nothing can be read."""

    problem: int
    file: str


class _Survey:
    """What one look at all rows shows: rows by class and split in the order of their lots, the columns, and where values lie."""

    def __init__(self, data: TableSet, label: str | None, report: Report, wish: Wish) -> None:
        self.data, self.label, self._wish = data, label, wish
        self._classes = frozenset(report.classes)
        self.buckets: dict[tuple[str, ...], list[tuple[float, Row]]] = {}
        self.class_of: dict[Row, str] = {}  # of rows that the report names
        self._columns: dict[int, frozenset[str]] = {}
        self._values: dict[str, list[npt.NDArray[np.float64]]] = {}
        named: dict[str, set[int]] = {}
        for problem in report.problems:
            for file, place in (one for unit in problem.numbers.get("shown", ()) for one in unit):
                named.setdefault(file, set()).add(place)
        self._named = {file: np.array(sorted(rows), np.int64) for file, rows in named.items()}

    def look(self, progress: Progress | None) -> None:
        """Go through all rows. What cannot be read on is left out, as validation does."""
        places = {id(part): place for place, part in enumerate(self.data.parts)}
        chances = [np.random.default_rng([self._wish.seed & 0xFFFFFFFF, place]) for place in range(len(places))]
        for part, first, chunk in self.data.read(progress):
            place, rows = places[id(part)], next(iter(chunk.values())).rows
            self._columns.setdefault(place, frozenset(chunk))
            self._measure(chunk)
            more = {_PLACE: Column(np.arange(first, first + rows)), _LOT: Column(chances[place].random(rows))}
            for split, some in by_split(part.split, {**chunk, **more}):
                self._choose(place, split, some)

    def _choose(self, part: int, split: str, chunk: Chunk) -> None:
        """Keep the rows with the smallest lots of each class, and the classes of rows that the report names."""
        places, lots = chunk[_PLACE].values, chunk[_LOT].values
        kinds, which = self._kinds(chunk)
        order = np.lexsort((lots, which))
        edges = np.searchsorted(which[order], np.arange(len(kinds) + 1))
        for kind, start, end in zip(kinds, edges[:-1], edges[1:], strict=True):
            bucket = self.buckets.setdefault((kind, split), [])
            bucket += [(float(lots[one]), Row(part, int(places[one]))) for one in order[start:end][: self._wish.samples]]
            bucket.sort()
            del bucket[self._wish.samples :]
        named = self._named.get(self.data.parts[part].file)
        if named is not None and self._classes:
            for position in np.flatnonzero(np.isin(places, named)).tolist():
                self.class_of[Row(part, int(places[position]))] = kinds[which[position]]

    def _kinds(self, chunk: Chunk) -> tuple[list[str], npt.NDArray[np.int64]]:
        """The classes, and which of them each row has; all have the same one, without a name, where there are none."""
        name = label_column(list(chunk), self.label)
        if not self._classes or name is None or chunk[name].counts is not None or chunk[name].values.ndim != 1:
            return [""], np.zeros(chunk[_PLACE].rows, np.int64)
        values = chunk[name].values
        kinds, which = np.unique(values.astype(str) if values.dtype.kind == "O" else values, return_inverse=True)
        names = dict(enumerate(self.data.class_names.get(name, ())))
        return [str(names.get(kind, kind)) for kind in kinds.tolist()], which.reshape(-1)

    def _measure(self, chunk: Chunk) -> None:
        for name, column in chunk.items():
            kept = self._values.setdefault(name, [])
            if column.values.dtype.kind in "iuf" and len(kept) < _KEPT // _SAMPLED:
                flat = column.values.reshape(-1)
                values = flat[:: max(1, len(flat) // _SAMPLED)].astype(np.float64)
                kept.append(values[np.isfinite(values)])

    def ranges(self) -> dict[str, tuple[float, float]]:
        """Where the values of a column usually lie: between the 1st and the 99th percentile; of an array, of all its columns."""
        found: dict[str, tuple[float, float]] = {}
        for name, some in self._values.items():
            values = np.concatenate(some) if some else np.empty(0)
            if values.size:
                low, high = np.quantile(values, (0.01, 0.99))
                found[name] = (float(low), float(high)) if high > low else (float(values.min()), float(values.max()))
        for name in dict.fromkeys(name for part in self.data.parts for name in part.shapes):
            parts = [one for key, one in found.items() if key == name or key.startswith(f"{name}[")]
            found |= {name: (min(low for low, _ in parts), max(high for _, high in parts))} if parts else {}
        return found

    def units(self, problem: Problem) -> list[tuple[Row, ...]]:
        """The rows that show a problem, those side by side that belong together. Several parts may be of one file."""
        needed = {*problem.numbers.get("columns", ()), *problem.numbers.get("keys", ())}
        parts: dict[str, int] = {}
        for part in sorted(self._columns, reverse=True):
            if not needed or needed & self._columns[part]:
                parts[self.data.parts[part].file] = part
        shown = problem.numbers.get("shown", ())
        return [tuple(Row(parts[file], place) for file, place in unit) for unit in shown if all(one[0] in parts for one in unit)]


def row_groups(
    data: TableSet, settings: Settings, wish: Wish, report: Report, progress: Progress | None, own: Own | None = None
) -> list[Group]:
    """Look at all rows once to choose, and once more to fetch what was chosen."""
    survey = _Survey(data, settings.label, report, wish)
    survey.look(progress)
    suspects = []
    for problem in report.problems:
        units = [unit for unit in survey.units(problem) if _has_class(survey, unit, wish)] if wish.wants(problem) else []
        suspects += [Suspects(problem.code, problem.severity, list(units))] if units else []
    codes = [problem.code for problem in report.problems]
    others = own.suspects() if own else _bad_files(report, wish)
    suspects = sorted([*suspects, *others], key=lambda one: codes.index(one.code))
    rest = {key: [row for _, row in some] for key, some in survey.buckets.items() if not wish.classes or key[0] in wish.classes}
    only = bool(wish.findings) and bool(suspects)
    drawn = chosen(suspects, rest, wish.samples, wish.seed, only_suspects=only)
    wanted = {one for unit in drawn for one in unit if isinstance(one, Row)}
    rows = _fetched(data, wanted)
    making = _Making(survey, report, rows, own)
    return [[making.sample(one) for one in unit] for unit in drawn if (wanted - rows.keys()).isdisjoint(unit)]


def _has_class(survey: _Survey, unit: Iterable[Row], wish: Wish) -> bool:
    return wish.wants_class(tuple(survey.class_of[row] for row in unit if row in survey.class_of))


def _bad_files(report: Report, wish: Wish) -> list[Suspects]:
    """Files that cannot be read: there is no row to draw, but they are told."""
    return [
        Suspects(problem.code, problem.severity, [(_BadFile(place, file),) for file in problem.files])
        for place, problem in enumerate(report.problems)
        if problem.code in _OF_FILES and wish.wants(problem) and not wish.classes
    ]


def _fetched(data: TableSet, rows: set[Row]) -> dict[Row, Fetched]:
    """The values of rows; of a part no more is read than holds them."""
    found: dict[Row, Fetched] = {}
    for at, part in enumerate(data.parts):
        wanted, before = np.array(sorted(row.place for row in rows if row.part == at), np.int64), 0
        for chunk in filter(None, part.chunks()) if len(wanted) else ():
            places = np.arange(before, before + next(iter(chunk.values())).rows)
            before += len(places)
            mine = np.isin(places, wanted)
            for split, some in by_split(part.split, taken({**chunk, _PLACE: Column(places)}, mine)) if mine.any() else ():
                for position, place in enumerate(some.pop(_PLACE).values.tolist()):
                    found[Row(at, place)] = Fetched(Row(at, place), split, row_at(some, position))
            if before > wanted[-1]:
                break
    return found


class _Making:
    """Makes samples of rows that were fetched."""

    def __init__(self, survey: _Survey, report: Report, rows: dict[Row, Fetched], own: Own | None) -> None:
        self._survey, self._report, self._rows, self._own = survey, report, rows, own
        self._ranges: Ranges = survey.ranges()
        self._marks: dict[Row, dict[int, Row | None]] = {}  # the problems that a row shows, each with the row beside it
        for place, problem in enumerate(report.problems):
            for unit in survey.units(problem):
                for row in unit:
                    partner = next((one for one in unit if one != row), None)
                    if partner is None or partner in rows:
                        self._marks.setdefault(row, {}).setdefault(place, partner)

    def sample(self, one: Hashable) -> Sample:
        """A row, a file that cannot be read, or whatever else the samples have of their own."""
        if isinstance(one, _BadFile):
            problem = self._report.problems[one.problem]
            said = problem.example.partition(": ")
            words = said[2] if said[0] == one.file else kind_words(problem)
            marks = [Mark(problem.code, problem.severity, words)]
            return Sample(one.file, "", partial(words_instead, "cannot be read", words), marks=marks)
        if not isinstance(one, Row):
            assert self._own is not None
            return self._own.sample(one)
        fetched = self._rows[one]
        bad: set[str] = set()
        marks = []
        for place, partner in self._marks.get(one, {}).items():
            problem = self._report.problems[place]
            columns = _wrong(problem, fetched.values)
            bad.update(columns)
            words = self._equal(problem, partner) if partner else _said(fetched.values, columns)
            marks.append(Mark(problem.code, problem.severity, words or kind_words(problem)))
        row = put_together(fetched.values, self._survey.data.parts[one.part].shapes)
        draw = partial(self._own.draw, fetched, row, bad) if self._own else partial(draw_row, row, self._ranges, bad)
        label, classes = self._class_of(fetched)
        return Sample(
            self._name(one), fetched.split, draw, classes, tuple((f"{label}: {name}", "") for name in classes), "", marks
        )

    def _name(self, row: Row) -> str:
        return self._own.name(row) if self._own else f"{self._survey.data.parts[row.part].file} row {row.place:,}"

    def _equal(self, problem: Problem, partner: Row) -> str:
        keys = ", ".join(problem.numbers.get("keys", ()))
        return f"the same {keys} as {self._name(partner)}" if keys else f"the same as {self._name(partner)}"

    def _class_of(self, one: Fetched) -> tuple[str, tuple[str, ...]]:
        """The name of the column with the classes, and what stands in it."""
        label = label_column(list(one.values), self._survey.label)
        if label is None or not self._report.classes:
            return "", ()
        value = one.values[label]
        value = value.item() if hasattr(value, "item") else value
        names = dict(enumerate(self._survey.data.class_names.get(label, ())))
        return label, (str(names.get(value, value)),)


def _wrong(problem: Problem, values: dict[str, Any]) -> list[str]:
    """The columns of this row that a problem is about."""
    columns = [name for name in (*problem.numbers.get("columns", ()), *problem.numbers.get("keys", ())) if name in values]
    return [name for name in columns if _is_odd(values[name])] if problem.numbers.get("rows") else columns


def _is_odd(value: Any) -> bool:
    try:
        return not bool(np.isfinite(np.asarray(value, dtype=np.float64)).all())
    except (TypeError, ValueError):
        return False


def _said(values: dict[str, Any], columns: list[str]) -> str:
    """What stands in the columns that are wrong."""
    parts = [f"{name} is {_short(values[name])}" for name in columns[:_TOLD]]
    more = f", and {len(columns) - _TOLD:,} more columns" if len(columns) > _TOLD else ""
    return ", ".join(parts) + more


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        odd = int((~np.isfinite(value.astype(np.float64))).sum())
        return f"{value.size:,} values, {odd:,} of them not finite" if odd else f"{value.size:,} values"
    return number(float(value)) if isinstance(value, (int, float, np.integer, np.floating)) and np.isfinite(value) else str(value)
