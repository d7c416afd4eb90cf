"""Contact sheets: tiles in rows of four, a picture and a caption each; samples that belong together share a frame."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from holdfast.data.pages import rendered
from holdfast.data.problem import Report
from holdfast.data.visualize.pictures import (
    CARD,
    INK,
    LINE,
    PAPER,
    SEVERITIES,
    SOFT,
    fitted,
    folded,
    put,
    width_of,
    words_instead,
)
from holdfast.data.visualize.sample import PICTURE, Group, Sample

if TYPE_CHECKING:
    from PIL import Image, ImageDraw


_COLUMNS, _ROWS, _AHEAD = 4, 4, 16
_GAP, _PAD, _HEAD = 12, 8, 34
_NAME, _SMALL, _STEP = 13, 12, 16
_TILE = PICTURE[0] + 2 * _PAD
_WIDTH = _COLUMNS * _TILE + (_COLUMNS + 1) * _GAP
_MARKS, _MARK_LINES = 3, 3  # findings of a sample that are told, and lines of each

Row = list[Group]
Box = tuple[int, int, int, int]


class Placed(NamedTuple):
    """A sample on a sheet: which sheet (from 1), where its picture is, and which group it belongs to (from 1)."""

    sample: Sample
    sheet: int
    box: Box
    group: int


def rows_of(groups: list[Group]) -> Iterator[Row]:
    """Groups in rows; none is broken, and one that is longer than a row is cut.

    Where a suspicious one does not fit at the end of a row, the next suspicious one that does takes the place.
    """
    waiting = [group[:_COLUMNS] for group in groups]
    while waiting:
        row = [waiting.pop(0)]
        while room := _COLUMNS - sum(map(len, row)):
            place = next((place for place, one in enumerate(waiting[:_AHEAD]) if len(one) <= room), None)
            if place is None or (place and not waiting[place][0].marks):
                break
            row.append(waiting.pop(place))
        yield row


def sheets(groups: list[Group], title: str) -> Iterator[tuple[Image.Image, list[Placed]]]:
    """One sheet after the other, with what is on it."""
    rows = list(rows_of(groups))
    total, number = -(-len(rows) // _ROWS), 0
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        yield _sheet(some, f"{title}    sheet {start // _ROWS + 1} of {total}", start // _ROWS + 1, number)
        number += sum(map(len, some))


def _sheet(rows: list[Row], title: str, sheet: int, groups_before: int) -> tuple[Image.Image, list[Placed]]:
    from PIL import Image, ImageDraw

    pictures = [[[_picture(sample) for sample in group] for group in row] for row in rows]
    tallest = [max(picture.height for some in row for picture in some) for row in pictures]
    lines = [max(len(_caption(sample)) + bool(sample.legend) for group in row for sample in group) for row in rows]
    heights = [high + 2 * _PAD + 6 + _STEP * many for high, many in zip(tallest, lines, strict=True)]
    columns = max(sum(map(len, row)) for row in rows) if len(rows) == 1 else _COLUMNS
    width = columns * _TILE + (columns + 1) * _GAP
    made = Image.new("RGB", (width, _HEAD + sum(heights) + (len(rows) + 1) * _GAP), PAPER)
    draw = ImageDraw.Draw(made)
    put(draw, (_GAP, _HEAD // 2 + 4), fitted(title, 14, width - 2 * _GAP), 14, INK, anchor="lm")
    placed: list[Placed] = []
    top, number = _HEAD + _GAP, groups_before
    for place, row in enumerate(rows):
        left = _GAP
        for group, some in zip(row, pictures[place], strict=True):
            number += 1
            _frame(draw, left, top, heights[place], group)
            for sample, picture in zip(group, some, strict=True):
                across = left + _PAD + (PICTURE[0] - picture.width) // 2
                down = top + _PAD + (tallest[place] - picture.height) // 2
                made.paste(picture, (across, down))
                _told(draw, sample, left + _PAD, top + _PAD + tallest[place] + 6)
                placed.append(Placed(sample, sheet, (across, down, across + picture.width, down + picture.height), number))
                left += _TILE + _GAP
        top += heights[place] + _GAP
    return made, placed


def _picture(sample: Sample) -> Image.Image:
    try:
        return sample.draw(PICTURE)
    except Exception as error:  # noqa: BLE001 - one sample that cannot be drawn does not cost the sheet
        return words_instead("cannot be drawn", f"{type(error).__name__}: {error}", PICTURE)


def _frame(draw: ImageDraw.ImageDraw, left: int, top: int, height: int, group: Group) -> None:
    """The card behind a tile; one for all tiles of a group."""
    right = left + len(group) * (_TILE + _GAP) - _GAP
    marks = group[0].marks
    edge = SEVERITIES[marks[0].severity] if marks else LINE
    draw.rounded_rectangle((left, top, right - 1, top + height - 1), 6, fill=CARD, outline=edge, width=2 if marks else 1)


def _told(draw: ImageDraw.ImageDraw, sample: Sample, left: int, top: int) -> None:
    """What stands below a picture."""
    for text, size, colour in _caption(sample):
        put(draw, (left, top), text, size, colour)
        top += _STEP
    end, across = left + PICTURE[0], float(left)
    for words, colour in sample.legend:  # classes in one line, each with its colour
        words = fitted(words, _SMALL, PICTURE[0] - 14 if len(sample.legend) == 1 else PICTURE[0] / 2 - 24)
        room = width_of(words, _SMALL) + (14 if colour else 0)
        if across + room > end:
            put(draw, (min(across, end - 8), top), "…", _SMALL, SOFT)
            return
        if colour:
            draw.rectangle((across, top + 3, across + 9, top + 12), fill=colour, outline=SOFT)
        put(draw, (across + (14 if colour else 0), top), words, _SMALL, INK)
        across += room + 10


def _caption(sample: Sample) -> list[tuple[str, int, str]]:
    """Lines with their size and colour; the legend comes below them."""
    lines = [(fitted(sample.name, _NAME, PICTURE[0]), _NAME, INK)]
    for mark in sample.marks[:_MARKS]:
        said = folded(f"{mark.code}: {mark.words}", _SMALL, PICTURE[0], _MARK_LINES)
        lines += [(line, _SMALL, SEVERITIES[mark.severity]) for line in said]
    if len(sample.marks) > _MARKS:
        others = ", ".join(mark.code for mark in sample.marks[_MARKS:])
        lines.append((fitted(f"also: {others}", _SMALL, PICTURE[0]), _SMALL, SOFT))
    about = sample.about
    return [*lines, *([(fitted(about, _SMALL, PICTURE[0]), _SMALL, SOFT)] if about else [])]


# One page with all samples. It shows the pictures of the sheets beside it, so it needs its folder and nothing else.


def page(report: Report, placed: Sequence[Placed], names: Sequence[str], notes: Sequence[str], about: str) -> str:
    """The whole file. `names` are the files of the sheets, `about` says how they were made."""
    samples = [one.sample for one in placed]
    choices = {
        "finding": dict.fromkeys(mark.code for sample in samples for mark in sample.marks),
        "class": dict.fromkeys(name for sample in samples for name in sample.classes),
        "split": dict.fromkeys(sample.split for sample in samples if sample.split),
    }
    picks = {word: values for word, values in choices.items() if len(values) > 1 or (values and word == "finding")}
    groups = [list(some) for _, some in groupby(placed, key=lambda one: one.group)]
    title = f"{report.path}: {report.format}"

    def values(words: Iterable[str]) -> str:
        return json.dumps(list(dict.fromkeys(words)), ensure_ascii=False)

    return rendered("sheets.html", title=title, about=about, notes=notes, names=names, picks=picks, groups=groups, values=values)
