"""Rows of tables, arrays and trees, and lines of text, chosen and ready to be drawn.

A report says which rows show a problem, by file and row. All rows are read once to choose others by split and class, and once
more to fetch what was chosen.
"""

from __future__ import annotations

import random
import re
import sys
import zlib
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.data.columns import Chunk, Column, TableSet, by_split, label_column, taken
from holdfast.data.formats.detect import Settings
from holdfast.data.formats.torch_dataset import OddTarget, as_columns, made_by, named_values, target_of, things_of
from holdfast.data.formats.torch_dataset import by_split as splits_of
from holdfast.data.problem import Problem, Report
from holdfast.data.samples import Thing
from holdfast.data.scan import Progress
from holdfast.data.stats.figures import Distribution
from holdfast.data.visualize.charts import Values, as_image, as_planes, number, put_together, row_at, row_tile
from holdfast.data.visualize.image_drawing import shapes_of
from holdfast.data.visualize.pictures import Tile, colour_of, picture_of, words_instead
from holdfast.data.visualize.sample import Group, Mark, Sample, Suspects, Wish, chosen, kind_words

_MOST_COLUMNS = 3
_OF_FILES = frozenset({"table-unreadable", "array-unreadable", "array-pickled", "tree-unreadable", "text-empty"})
_PLACE, _LOT = "\0place", "\0lot"  # columns that are added, so that rows keep both when they are put into splits
_SAMPLED = 256  # values of a chunk from which the usual range of a column is told


class Row(NamedTuple):
    """A row of a part of the data."""

    part: int
    place: int


class _BadFile(NamedTuple):
    """A file of which nothing can be read."""

    problem: int
    file: str


class RowSamples:
    """Chooses rows, fetches them, and makes samples of them."""

    def __init__(self, data: TableSet, label: str | None, report: Report, wish: Wish) -> None:
        self.data, self.report, self.wish = data, report, wish
        self._label = label
        self._buckets: dict[tuple[str, ...], list[tuple[float, Row]]] = {}  # by class and split, in the order of their lots
        self._class_of: dict[Row, str] = {}  # of rows that the report names
        self._columns: dict[int, frozenset[str]] = {}
        self._values: dict[str, Distribution] = {}
        self._fetched: dict[Row, tuple[str, dict[str, Any]]] = {}  # split and values
        self._ranges: dict[str, tuple[float, float]] = {}
        self._marks: dict[Row, dict[int, Row | None]] = {}  # the problems that a row shows, each with the row beside it
        self._cases = {
            (place, case.partition(": ")[0]): case for place, problem in enumerate(report.problems) for case in problem.cases
        }

    def groups(self, progress: Progress | None) -> list[Group]:
        """Look at all rows once to choose, and once more to fetch what was chosen."""
        self._look(progress)
        suspects = self.others()
        for problem in filter(self.wish.wants, self.report.problems):
            units = [
                unit
                for unit in self._units(problem)
                if self.wish.wants_class(tuple(self._class_of[row] for row in unit if row in self._class_of))
            ]
            suspects += [Suspects(problem.code, problem.severity, list(units))] if units else []
        codes = [problem.code for problem in self.report.problems]
        suspects.sort(key=lambda suspect: codes.index(suspect.code))
        classes = self.wish.classes
        rest = {key: [row for _, row in some] for key, some in self._buckets.items() if not classes or key[0] in classes}
        only = bool(self.wish.findings) and bool(suspects)
        drawn = chosen(suspects, rest, self.wish.samples, self.wish.seed, only_suspects=only)
        wanted = {row for unit in drawn for row in unit if isinstance(row, Row)}
        self._fetch(wanted)
        self._ranges = self._usual_ranges()
        self._find_partners()
        made = (unit for unit in drawn if (wanted - self._fetched.keys()).isdisjoint(unit))
        return [[self._sample(row) if isinstance(row, Row) else self.other(row) for row in unit] for unit in made]

    def others(self) -> list[Suspects]:
        """What the report names by something else than a row: files that cannot be read. Asked once all rows were seen."""
        return [
            Suspects(problem.code, problem.severity, [(_BadFile(place, file),) for file in problem.files])
            for place, problem in enumerate(self.report.problems)
            if problem.code in _OF_FILES and self.wish.wants(problem) and not self.wish.classes
        ]

    def other(self, which: Hashable) -> Sample:
        """The sample of one of those; there is no row to draw."""
        assert isinstance(which, _BadFile)
        problem = self.report.problems[which.problem]
        file, _, message = problem.example.partition(": ")
        message = message if file == which.file else kind_words(problem)
        marks = [Mark(problem.code, problem.severity, message)]
        return Sample(which.file, "", partial(words_instead, "cannot be read", message), marks=marks)

    def name(self, row: Row) -> str:
        """What a row is called."""
        file = self.data.parts[row.part].file
        return f"{file}:{row.place + 1}" if self.data.format == "text" else f"{file} row {row.place:,}"

    def drawing(self, _: Row, values: Values, bad: set[str]) -> Callable[[], Tile]:
        """What draws a row; the columns in `bad` are marked."""
        return partial(row_tile, values, self._ranges, bad)

    def _look(self, progress: Progress | None) -> None:
        """Go through all rows. What cannot be read on is left out, as validation does."""
        named: dict[str, list[int]] = {}
        for problem in self.report.problems:
            for file, row in (place for unit in problem.evidence.get("shown", ()) for place in unit):
                named.setdefault(file, []).append(row)
        places = {id(part): place for place, part in enumerate(self.data.parts)}
        chances = [np.random.default_rng([self.wish.seed & 0xFFFFFFFF, place]) for place in range(len(places))]
        for part, first, chunk in self.data.read(progress):
            place, rows = places[id(part)], next(iter(chunk.values())).rows
            self._columns.setdefault(place, frozenset(chunk))
            for name, column in chunk.items():
                flat = column.values.reshape(-1)
                values = flat[:: max(1, len(flat) // _SAMPLED)]
                if values.dtype.kind in "iuf" and len(finite := values[np.isfinite(values)]):
                    self._values.setdefault(name, Distribution()).add("", finite)
            more = {_PLACE: Column(np.arange(first, first + rows)), _LOT: Column(chances[place].random(rows))}
            for split, some in by_split(part.split, {**chunk, **more}):
                self._choose(place, split, some, np.array(named.get(part.file, ()), np.int64))

    def _choose(self, part: int, split: str, chunk: Chunk, named: npt.NDArray[np.int64]) -> None:
        """Keep the rows with the smallest lots of each class, and the classes of rows that the report names."""
        places, lots = chunk[_PLACE].values, chunk[_LOT].values
        kinds, which = self._kinds(chunk)
        order = np.lexsort((lots, which))
        edges = np.searchsorted(which[order], np.arange(len(kinds) + 1))
        for kind, start, end in zip(kinds, edges[:-1], edges[1:], strict=True):
            bucket = self._buckets.setdefault((kind, split), [])
            bucket += [(float(lots[index]), Row(part, int(places[index]))) for index in order[start:end][: self.wish.samples]]
            bucket.sort()
            del bucket[self.wish.samples :]
        for position in np.flatnonzero(np.isin(places, named)).tolist() if self.report.classes else ():
            self._class_of[Row(part, int(places[position]))] = kinds[which[position]]

    def _kinds(self, chunk: Chunk) -> tuple[list[str], npt.NDArray[np.int64]]:
        """The classes, and which of them each row has; all have the same one, without a name, where there are none."""
        name = label_column(list(chunk), self._label)
        if not self.report.classes or name is None or chunk[name].counts is not None or chunk[name].values.ndim != 1:
            return [""], np.zeros(chunk[_PLACE].rows, np.int64)
        values = chunk[name].values
        kinds, which = np.unique(values.astype(str) if values.dtype.kind == "O" else values, return_inverse=True)
        return [self.data.class_name(name, kind) for kind in kinds.tolist()], which.reshape(-1)

    def _usual_ranges(self) -> dict[str, tuple[float, float]]:
        """Where the values of a column usually lie: between the 1st and the 99th percentile; of an array, of all its columns."""
        ranges: dict[str, tuple[float, float]] = {}
        for name, values in self._values.items():
            low, high = np.quantile(values.sample(), (0.01, 0.99)).tolist()
            ranges[name] = (low, high) if high > low else (values.low, values.high)
        for name in dict.fromkeys(name for part in self.data.parts for name in part.shapes):
            parts = [span for key, span in ranges.items() if key == name or key.startswith(f"{name}[")]
            ranges |= {name: (min(low for low, _ in parts), max(high for _, high in parts))} if parts else {}
        return ranges

    def _units(self, problem: Problem) -> list[tuple[Row, ...]]:
        """The rows that show a problem, those side by side that belong together. Several parts may be of one file."""
        needed = {*problem.evidence.get("columns", ()), *problem.evidence.get("keys", ())}
        parts: dict[str, int] = {}
        for part in sorted(self._columns, reverse=True):
            if not needed or needed & self._columns[part]:
                parts[self.data.parts[part].file] = part
        shown = problem.evidence.get("shown", ())
        return [
            tuple(Row(parts[file], place) for file, place in unit) for unit in shown if all(place[0] in parts for place in unit)
        ]

    def _fetch(self, rows: set[Row]) -> None:
        """The values of rows; of a part no more is read than holds them."""
        for at, part in enumerate(self.data.parts):
            wanted, before = np.array(sorted(row.place for row in rows if row.part == at), np.int64), 0
            for chunk in filter(None, part.chunks()) if len(wanted) else ():
                places = np.arange(before, before + next(iter(chunk.values())).rows)
                before += len(places)
                mine = np.isin(places, wanted)
                for split, some in by_split(part.split, taken({**chunk, _PLACE: Column(places)}, mine)) if mine.any() else ():
                    for position, place in enumerate(some.pop(_PLACE).values.tolist()):
                        self._fetched[Row(at, place)] = split, row_at(some, position)
                if before > wanted[-1]:
                    break

    def _find_partners(self) -> None:
        for place, problem in enumerate(self.report.problems):
            for unit in self._units(problem):
                for row in unit:
                    partner = next((other for other in unit if other != row), None)
                    if partner is None or partner in self._fetched:
                        self._marks.setdefault(row, {}).setdefault(place, partner)

    def _sample(self, row: Row) -> Sample:
        split, values = self._fetched[row]
        bad: set[str] = set()
        marks = []
        for place, partner in self._marks.get(row, {}).items():
            problem = self.report.problems[place]
            columns = _wrong(problem, values)
            bad.update(columns)
            keys = ", ".join(problem.evidence.get("keys", ()))
            message = (
                f"the same {keys + ' ' if keys else ''}as {self.name(partner)}" if partner else _wrong_values(values, columns)
            )
            message = message or self._cases.get((place, self.name(row)), "").partition(": ")[2]
            marks.append(Mark(problem.code, problem.severity, message or kind_words(problem)))
        draw = self.drawing(row, put_together(values, self.data.parts[row.part].shapes), bad)
        label = label_column(list(values), self._label)
        if label is None or not self.report.classes:
            return Sample(self.name(row), split, draw, marks=marks)
        kind = values[label].item() if hasattr(values[label], "item") else values[label]
        name = self.data.class_name(label, kind)
        return Sample(self.name(row), split, draw, (name,), ((f"{label}: {name}", ""),), "", marks)


def _wrong(problem: Problem, values: dict[str, Any]) -> list[str]:
    """The columns of this row that a problem is about."""
    columns = [name for name in (*problem.evidence.get("columns", ()), *problem.evidence.get("keys", ())) if name in values]
    return [name for name in columns if _is_odd(values[name])] if problem.evidence.get("rows") else columns


def _is_odd(value: Any) -> bool:
    try:
        return not bool(np.isfinite(np.asarray(value, dtype=np.float64)).all())
    except (TypeError, ValueError):
        return False


def _wrong_values(values: dict[str, Any], columns: list[str]) -> str:
    """What stands in the columns that are wrong."""
    parts = [f"{name} is {_short(values[name])}" for name in columns[:_MOST_COLUMNS]]
    more = f", and {len(columns) - _MOST_COLUMNS:,} more columns" if len(columns) > _MOST_COLUMNS else ""
    return ", ".join(parts) + more


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        odd = int((~np.isfinite(value.astype(np.float64))).sum())
        return f"{value.size:,} values, {odd:,} of them not finite" if odd else f"{value.size:,} values"
    return number(float(value)) if isinstance(value, (int, float, np.integer, np.floating)) and np.isfinite(value) else str(value)


_PLACED = re.compile(r"^(.*)\[(\d+)\]$")  # how validation names a sample: split[place]
_LOST = "sample-unreadable"


class Direct(NamedTuple):
    """A sample that is named by its place, not as a row: one with a bad box, or one that raises."""

    split: str
    place: int

    @property
    def name(self) -> str:
        """As validation names it."""
        return f"{self.split}[{self.place}]"


class DatasetSamples(RowSamples):
    """The data sets of the user; the factory is called once more."""

    def __init__(self, path: str, settings: Settings, report: Report, wish: Wish) -> None:
        self._sets = dict(splits_of(made_by(path)))
        super().__init__(as_columns(self._sets), settings.label, report, wish)
        self._named: dict[Direct, list[Mark]] = {}

    def place_of(self, row: Row) -> Direct:
        """Rows are samples that could be read: those that raised before it are counted in."""
        split, place = self.data.parts[row.part].split, row.place
        for lost in sorted({fault.line for fault in self.data.faults if fault.code == _LOST and fault.file == split}):
            place += lost <= place
        return Direct(split, place)

    def name(self, row: Row) -> str:
        """As validation names it."""
        return self.place_of(row).name

    def others(self) -> list[Suspects]:
        """Samples that the report names by their places, and those that raised."""
        suspects = []
        for problem in self.report.problems if not self.wish.classes else ():
            units: list[tuple[Hashable, ...]] = []
            for where, message in self._places(problem.code, problem.files) if self.wish.wants(problem) else ():
                self._named.setdefault(where, []).append(Mark(problem.code, problem.severity, message))
                units.append((where,))
            if units:
                suspects.append(Suspects(problem.code, problem.severity, units))
        return suspects

    def _places(self, code: str, files: list[str]) -> Iterator[tuple[Direct, str]]:
        details: dict[str, str] = {}
        for fault in self.data.faults:
            if fault.code == code == _LOST:
                yield Direct(fault.file, fault.line), fault.detail
            elif fault.code == code:
                details[fault.file] = fault.detail
        for file in files:
            parts = _PLACED.match(file)
            if parts and parts[1] in self._sets:
                yield Direct(parts[1], int(parts[2])), details.get(file, "")

    def other(self, which: Hashable) -> Sample:
        """A sample that is named by its place."""
        assert isinstance(which, Direct)
        marks = self._named[which]
        lost = next((mark.words for mark in marks if mark.code == _LOST), None)
        draw = partial(self._drawn, which, {}) if lost is None else partial(words_instead, "raises", lost)
        return Sample(which.name, which.split, draw, marks=marks)

    def drawing(self, row: Row, values: Values, bad: set[str]) -> Callable[[], Tile]:
        """A sample that was chosen as a row; one that cannot be read again is drawn from its columns."""
        where = self.place_of(row)
        if not hasattr(self._sets[where.split], "__getitem__"):
            return partial(row_tile, values, {}, bad)
        return partial(self._drawn, where, values)

    def _drawn(self, where: Direct, row: Values) -> Tile:
        _same_chances(self.wish.seed + where.place)
        try:
            sample = self._sets[where.split][where.place]
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            return words_instead("raises", f"{type(error).__name__}: {error}")
        values = dict(named_values("", sample))
        things = _things(sample)
        planes = next((planes for value in values.values() if (planes := as_planes(np.asarray(value))) is not None), None)
        if things is None or planes is None:
            return row_tile(values or row, {}, ())
        picture = as_image(planes)
        bad = {
            thing.line for thing in things if min(thing.box[2] - thing.box[0], thing.box[3] - thing.box[1]) < 0.5
        }  # the rest can be seen
        shapes = shapes_of(
            things, picture.size, name=str, bad_lines=bad,
            colour=lambda key: colour_of(key if isinstance(key, int) else zlib.crc32(key.encode())),
        )  # fmt: skip
        return Tile(pictures=[picture_of(picture, shapes=shapes)])


def _same_chances(seed: int) -> None:
    """Samples that are changed by chance look the same the next time."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def _things(sample: Any) -> list[Thing] | None:
    """Boxes of a detection sample, as torchvision has them; None for any other, and for boxes of another kind."""
    target = target_of(sample)
    if target is None:
        return None
    try:
        return [thing._replace(line=place) for place, thing in enumerate(things_of(target))]
    except OddTarget:
        return None
