"""Samples of a torch data set: chosen by their columns as rows are, drawn as what they are: pictures, boxes, series."""

from __future__ import annotations

import random
import re
import sys
import zlib
from collections.abc import Hashable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from holdfast.data.columns import TableSet
from holdfast.data.formats.detect import Settings
from holdfast.data.formats.torch_dataset import OddTarget, as_columns, by_split, made_by, named_values, things_of
from holdfast.data.problem import Report
from holdfast.data.samples import ClassKey, Thing
from holdfast.data.scan import Progress
from holdfast.data.visualize.charts import as_planes, picture_of
from holdfast.data.visualize.image_drawing import draw_things
from holdfast.data.visualize.pictures import Colour, colour_of, fitting, scaled, words_instead
from holdfast.data.visualize.row_drawing import Row as Values
from holdfast.data.visualize.row_drawing import draw_row
from holdfast.data.visualize.row_samples import Fetched, Own, Row, row_groups
from holdfast.data.visualize.sample import Group, Mark, Sample, Size, Suspects, Wish

if TYPE_CHECKING:
    from PIL import Image

_PLACED = re.compile(r"^(.*)\[(\d+)\]$")  # how validation names a sample: split[place]


class Direct(NamedTuple):
    """A sample that is named by its place, not as a row: one with a bad box, or one that raises."""

    split: str
    place: int


def dataset_groups(path: str, settings: Settings, wish: Wish, report: Report, progress: Progress | None) -> list[Group]:
    """The samples to draw; the factory is called once more."""
    made = list(by_split(made_by(path)))
    data = as_columns(dict(made))
    own = _Samples(dict(made), data, report, wish)
    return row_groups(data, settings, wish, report, progress, Own(own.draw, own.name, own.suspects, own.sample))


class _Samples:
    """The data sets of the user."""

    def __init__(self, sets: dict[str, Any], data: TableSet, report: Report, wish: Wish) -> None:
        self._sets, self._data, self._report, self._wish = sets, data, report, wish
        self._marks: dict[Direct, list[Mark]] = {}
        self._lost: dict[Direct, str] = {}

    def place_of(self, row: Row) -> Direct:
        """Rows are samples that could be read: those that raised before it are counted in."""
        split, place = self._data.parts[row.part].split, row.place
        for lost in sorted({fault.line for fault in self._data.faults if _is_lost(fault.code) and fault.file == split}):
            place += lost <= place
        return Direct(split, place)

    def name(self, row: Row) -> str:
        """As validation names it."""
        where = self.place_of(row)
        return f"{where.split}[{where.place}]"

    def suspects(self) -> list[Suspects]:
        """Samples that the report names by their places, and those that raised."""
        self._lost = {Direct(one.file, one.line): one.detail for one in self._data.faults if _is_lost(one.code)}
        found = []
        for problem in self._report.problems:
            if not self._wish.wants(problem) or self._wish.classes:
                continue
            units: list[tuple[Hashable, ...]] = []
            for where, words in self._named(problem.code, problem.files):
                self._marks.setdefault(where, []).append(Mark(problem.code, problem.severity, words))
                units.append((where,))
            if units:
                found.append(Suspects(problem.code, problem.severity, units))
        return found

    def _named(self, code: str, files: list[str]) -> Iterator[tuple[Direct, str]]:
        if _is_lost(code):
            yield from self._lost.items()
        details = {fault.file: fault.detail for fault in self._data.faults if fault.code == code}
        for file in files:
            parts = _PLACED.match(file)
            if parts and parts[1] in self._sets:
                yield Direct(parts[1], int(parts[2])), details.get(file, "")

    def sample(self, one: Hashable) -> Sample:
        """A sample that is named by its place."""
        assert isinstance(one, Direct)
        marks = self._marks.get(one, [])
        if one in self._lost:
            return Sample(f"{one.split}[{one.place}]", one.split, partial(words_instead, "raises", self._lost[one]), marks=marks)
        return Sample(f"{one.split}[{one.place}]", one.split, partial(self._drawn, one, {}), marks=marks)

    def draw(self, one: Fetched, row: Values, bad: set[str], room: Size) -> Image.Image:
        """A sample that was chosen as a row; one that cannot be read again is drawn from its columns."""
        where = self.place_of(one.row)
        if not hasattr(self._sets[where.split], "__getitem__"):
            return draw_row(row, {}, bad, room)
        return self._drawn(where, row, room)

    def _drawn(self, where: Direct, row: Values, room: Size) -> Image.Image:
        _same_chances(self._wish.seed + where.place)
        try:
            sample = self._sets[where.split][where.place]
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            return words_instead("raises", f"{type(error).__name__}: {error}", room)
        values = dict(named_values("", sample))
        things = _things(sample)
        planes = next((planes for one in values.values() if (planes := as_planes(np.asarray(one))) is not None), None)
        if things is None or planes is None:
            return draw_row(values or row, {}, (), room)
        picture = picture_of(planes)
        size = fitting(picture.size, room)
        return draw_things(scaled(picture, size), things, picture.size, colour=_colour, name=str, bad_lines=_bad(things))


def _is_lost(code: str) -> bool:
    return code == "sample-unreadable"


def _same_chances(seed: int) -> None:
    """Samples that are changed by chance look the same the next time."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def _things(sample: Any) -> list[Thing] | None:
    """Boxes of a detection sample, as torchvision has them; None for any other, and for boxes of another kind."""
    target = sample[1] if isinstance(sample, (tuple, list)) and len(sample) == 2 else None
    if not isinstance(target, dict) or "boxes" not in target:
        return None
    try:
        return [one._replace(line=place) for place, one in enumerate(things_of(target))]
    except OddTarget:
        return None


def _bad(things: list[Thing]) -> set[int]:
    """Boxes without area; the others can be seen."""
    return {one.line for one in things if one.box[2] - one.box[0] < 0.5 or one.box[3] - one.box[1] < 0.5}


def _colour(key: ClassKey) -> Colour:
    return colour_of(key if isinstance(key, int) else zlib.crc32(str(key).encode()))
