"""Rows of tables, arrays and trees, and samples of a torch data set, chosen and ready to be drawn."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.data.columns import TableSet, label_column
from holdfast.data.formats.detect import Settings
from holdfast.data.problem import Report
from holdfast.data.scan import Progress
from holdfast.data.visualize.charts import number
from holdfast.data.visualize.pictures import words_instead
from holdfast.data.visualize.row_drawing import Ranges, Row, RowId, draw_row, put_together
from holdfast.data.visualize.row_survey import Fetched, Partner, Survey, Suspicion, fetch, suspicions
from holdfast.data.visualize.sample import Group, Mark, Sample, Size, Suspects, Wish, chosen, kind_words

if TYPE_CHECKING:
    from PIL import Image

_TOLD = 3
_OF_FILES = frozenset({"table-unreadable", "array-unreadable", "array-pickled", "tree-unreadable"})


class Own(NamedTuple):
    """What is different for samples that are more than their columns: how they are drawn and named.

    `suspects` are those that the report names by something else than a row (asked once all rows were seen), and `sample` makes
    one of them.
    """

    draw: Callable[[Fetched, Row, set[str], Size], Image.Image]
    name: Callable[[Fetched], str]
    suspects: Callable[[], list[Suspects]]
    sample: Callable[[Hashable], Sample]


def row_groups(
    data: TableSet, settings: Settings, wish: Wish, report: Report, progress: Progress | None, own: Own | None = None
) -> list[Group]:
    """Look at all rows once to choose, and once more to fetch what was chosen."""
    survey = Survey(wish.seed, wish.samples, suspicions(report.problems), settings.label, frozenset(report.classes))
    survey.look(data, progress, report.samples)
    codes = [problem.code for problem in report.problems]
    others = own.suspects() if own else _bad_files(report, wish)
    suspects = sorted([*_suspects(survey, wish), *others], key=lambda one: codes.index(one.code))
    only = bool(wish.findings) and bool(suspects)
    units = chosen(suspects, {}, wish.samples, wish.seed, only_suspects=only)
    units += [] if only else chosen([], _rest(survey, wish), wish.samples, wish.seed)
    ids = [one for unit in units for one in unit]
    rows = fetch(data, survey, [one for one in ids if isinstance(one, RowId)], [one for one in ids if isinstance(one, Partner)])
    return _Making(data, survey, rows, own).groups(_each_once(units, rows, wish.samples))


def _each_once(
    units: list[tuple[Hashable, ...]], rows: dict[RowId | Partner, Fetched], wanted: int
) -> list[tuple[Hashable, ...]]:
    """As many as are wanted, without single rows that are drawn already: which row a partner is shows only once it is fetched."""
    kept: list[tuple[Hashable, ...]] = []
    drawn: set[Hashable] = set()
    for unit in units:
        if any(isinstance(one, (RowId, Partner)) and one not in rows for one in unit):
            continue  # it has no equal one: the report meant the row of that number in another split
        real = [rows[one].row if isinstance(one, (RowId, Partner)) else one for one in unit]
        if len(unit) <= wanted and not drawn.issuperset(real):
            drawn.update(real)
            kept.append(unit)
            wanted -= len(unit)
    return kept


class _BadFile(NamedTuple):
    """A file of which nothing can be read."""

    file: str
    words: str


def _bad_files(report: Report, wish: Wish) -> list[Suspects]:
    """Files that cannot be read: there is no row to draw, but they are told."""
    found = []
    for problem in report.problems:
        if problem.code in _OF_FILES and wish.wants(problem) and not wish.classes:
            said = problem.example.partition(": ")
            units: list[tuple[Hashable, ...]] = [
                (_BadFile(file, said[2] if said[0] == file else kind_words(problem)),) for file in problem.files
            ]
            found.append(Suspects(problem.code, problem.severity, units))
    return found


def _suspects(survey: Survey, wish: Wish) -> list[Suspects]:
    made = []
    for place, suspicion in enumerate(survey.suspicions):
        if not wish.wants(suspicion.problem):
            continue
        rows = [one for one in dict.fromkeys(suspicion.found) if wish.wants_class(_classes(survey, one))]
        units: list[tuple[Hashable, ...]] = [
            (row, Partner(row, place)) if suspicion.is_of_pairs and row in suspicion.equal_to else (row,) for row in rows
        ]
        if units:
            made.append(Suspects(suspicion.problem.code, suspicion.problem.severity, units))
    return made


def _rest(survey: Survey, wish: Wish) -> dict[tuple[str, ...], list[Hashable]]:
    return {
        bucket: [row for _, row in rows]
        for bucket, rows in survey.buckets.items()
        if not wish.classes or bucket[0] in wish.classes
    }


def _classes(survey: Survey, row: RowId) -> tuple[str, ...]:
    return (survey.class_of[row],) if row in survey.class_of else ()


class _Making:
    """Makes samples of rows that were fetched."""

    def __init__(self, data: TableSet, survey: Survey, rows: dict[RowId | Partner, Fetched], own: Own | None) -> None:
        self._data, self._survey, self._rows = data, survey, rows
        self._ranges = {**survey.ranges(), **_of_arrays(data, survey.ranges())}
        self._own = own
        self._marks: dict[RowId, list[tuple[Suspicion, str]]] = {}
        for suspicion in survey.suspicions:
            for row in suspicion.found:
                self._marks.setdefault(row, []).append((suspicion, ""))

    def groups(self, units: list[tuple[Hashable, ...]]) -> list[Group]:
        """A group for each unit."""
        made = []
        for unit in units:
            if isinstance(unit[0], _BadFile):
                made.append([self._bad_file(unit[0])])
                continue
            if self._own and not isinstance(unit[0], (RowId, Partner)):
                made.append([self._own.sample(one) for one in unit])
                continue
            some = [self._rows[one] for one in unit if isinstance(one, (RowId, Partner))]
            self._tell_equal(unit, some)
            made.append([self._sample(one) for one in some])
        return made

    def _tell_equal(self, unit: tuple[Hashable, ...], some: list[Fetched]) -> None:
        for partner in unit:
            if not isinstance(partner, Partner):
                continue
            suspicion = self._survey.suspicions[partner.suspicion]
            how = f"the same {', '.join(suspicion.keys)} as" if suspicion.keys else "the same as"
            one, other = some[0], some[-1]
            for row, to in ((one, other), (other, one)):
                marks = [mark for mark in self._marks.get(row.row, []) if mark[0] is not suspicion]
                self._marks[row.row] = [*marks, (suspicion, f"{how} {self._name(to)}")]

    def _bad_file(self, one: _BadFile) -> Sample:
        problems = [suspicion.problem for suspicion in self._survey.suspicions if one.file in suspicion.problem.files]
        marks = [Mark(problem.code, problem.severity, one.words) for problem in problems if problem.code in _OF_FILES]
        return Sample(one.file, "", partial(words_instead, "cannot be read", one.words), marks=marks)

    def _name(self, one: Fetched) -> str:
        return self._own.name(one) if self._own else f"{self._data.parts[one.part].file} row {one.place:,}"

    def _sample(self, one: Fetched) -> Sample:
        bad: set[str] = set()
        marks = []
        for suspicion, words in self._marks.get(one.row, []):
            columns = _wrong(suspicion, one.values)
            bad.update(columns)
            problem = suspicion.problem
            marks.append(Mark(problem.code, problem.severity, words or _said(one.values, columns) or kind_words(problem)))
        row = put_together(one.values, self._data.parts[one.part].shapes)
        draw = partial(self._own.draw, one, row, bad) if self._own else partial(draw_row, row, self._ranges, bad)
        label, classes = self._class_of(one)
        return Sample(
            self._name(one), one.row.split, draw, classes, tuple((f"{label}: {name}", "") for name in classes), "", marks
        )

    def _class_of(self, one: Fetched) -> tuple[str, tuple[str, ...]]:
        """The name of the column with the classes, and what stands in it."""
        label = label_column(list(one.values), self._survey.label)
        if label is None or not self._survey.classes:
            return "", ()
        value = one.values[label]
        return label, (str(value.item() if hasattr(value, "item") else value),)


def _of_arrays(data: TableSet, ranges: Ranges) -> dict[str, tuple[float, float]]:
    """The ranges of arrays that were taken apart into columns."""
    found = {}
    for name in dict.fromkeys(name for part in data.parts for name in part.shapes):
        some = [one for key, one in ranges.items() if key == name or key.startswith(f"{name}[")]
        if some:
            found[name] = (min(low for low, _ in some), max(high for _, high in some))
    return found


def _wrong(suspicion: Suspicion, values: dict[str, Any]) -> list[str]:
    """The columns of this row that a problem is about."""
    if len(suspicion.rows):
        return [name for name in suspicion.columns if name in values and _is_odd(values[name])]
    return [name for name in (*suspicion.columns, *suspicion.keys) if name in values]


def _is_odd(value: Any) -> bool:
    try:
        import numpy as np

        return not bool(np.isfinite(np.asarray(value, dtype=np.float64)).all())
    except (TypeError, ValueError):
        return False


def _said(values: dict[str, Any], columns: list[str]) -> str:
    """What stands in the columns that are wrong."""
    parts = [f"{name} is {_short(values[name])}" for name in columns[:_TOLD]]
    more = f", and {len(columns) - _TOLD:,} more columns" if len(columns) > _TOLD else ""
    return ", ".join(parts) + more


def _short(value: Any) -> str:
    import numpy as np

    if isinstance(value, np.ndarray):
        odd = int((~np.isfinite(value.astype(np.float64))).sum())
        return f"{value.size:,} values, {odd:,} of them not finite" if odd else f"{value.size:,} values"
    return number(float(value)) if isinstance(value, (int, float, np.integer, np.floating)) and np.isfinite(value) else str(value)
