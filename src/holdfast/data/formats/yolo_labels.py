"""One label file of YOLO: `class x y width height` or `class x y x y x y …` a line, in shares of the image's size."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

from holdfast.data.listing import read_text
from holdfast.data.problem import Fault
from holdfast.data.samples import Entry, Label, Thing, box_around

_LARGEST = 64 << 20
MOST_TOLD = 20  # faults of one file
_new = tuple.__new__  # a Thing without the call of its constructor: twice as fast, and there are thousands


def read_label(root: Path, entry: Entry) -> Label:
    """Read the label of one image; a line that cannot be read becomes a fault, the others are kept."""
    text = text_of(root, entry)
    if isinstance(text, Label):
        return text
    lines = text.splitlines()
    things = _only_boxes(text, lines)
    return Label(things, True) if things is not None else _line_by_line(str(entry.label), lines)


def text_of(root: Path, entry: Entry) -> str | Label:
    """The text of a label file; a label that says so where there is no file, or it cannot be read."""
    if entry.label is None:
        return Label([], shares=True)
    try:
        return read_text(f"{root}/{entry.label}" if entry.label[0] != "/" else entry.label, limit=_LARGEST)
    except (OSError, ValueError) as error:
        return Label([], shares=True, faults=(Fault("label-unreadable", entry.label, 0, str(error)),))


def _only_boxes(text: str, lines: list[str]) -> list[Thing] | None:
    """The usual file at once: five numbers on every line; None for any other. Half of the time of a quick look is spent here.

    A line of four beside one of six would put a coordinate in the place of a class, which is no whole number.
    """
    words = text.split()
    if len(words) != 5 * len(lines) or text.count(" ") != 4 * len(lines):
        return None
    try:
        values = list(map(float, words))
        kinds = list(map(int, values[0::5]))
    except (ValueError, OverflowError):
        return None
    if kinds != values[0::5] or not isfinite(sum(values)):
        return None
    columns = (kinds, values[1::5], values[2::5], values[3::5], values[4::5], range(1, len(lines) + 1))
    return [
        _new(Thing, (kind, (x - across / 2, y - down / 2, x + across / 2, y + down / 2), None, number))
        for kind, x, y, across, down, number in zip(*columns, strict=True)
    ]


def _line_by_line(file: str, lines: list[str]) -> Label:
    things: list[Thing] = []
    faults: list[Fault] = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        try:
            if words:
                things.append(_thing(words, number))
        except (ValueError, OverflowError) as error:
            if len(faults) < MOST_TOLD:
                faults.append(Fault("label-unreadable", file, number, str(error)[:200]))
    return Label(things, True, None, tuple(faults))


def _thing(words: list[str], number: int) -> Thing:
    """A box, also with a score behind it as predictions have, or a polygon; ValueError with what is wrong with anything else."""
    values = numbers_of(words)
    if len(values) in (5, 6):
        return box_of(values, number)
    points = values[1:]
    if len(points) < 6 or len(points) % 2:
        raise ValueError(f"{len(words)} numbers are neither a box (5) nor a polygon (7, 9, 11 …)")
    return Thing(int(values[0]), box_around(points), tuple(points), number)


def numbers_of(words: list[str]) -> list[float]:
    """The numbers of a line, of which the first is a class; ValueError where one is none."""
    values = [float(word) for word in words]
    if not isfinite(sum(values)):
        raise ValueError(f"not a finite number in {' '.join(words)[:80]!r}")
    if int(values[0]) != values[0]:
        raise ValueError(f"class {words[0][:40]} is no whole number")
    return values


def box_of(values: list[float], number: int) -> Thing:
    """The box that the first five numbers of a line are."""
    x, y, across, down = values[1:5]
    return Thing(int(values[0]), (x - across / 2, y - down / 2, x + across / 2, y + down / 2), None, number)
