"""Text logs of any usual shape: `loss: 0.12`, `loss=0.12`, `train loss 0.12`, progress bars, dicts, one number a line.

A line gives pairs of name and number. Which epoch and step it belongs to stands in the line, or in one before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from holdfast.logs.line_shape import Shape, filled, parts_of, shape_of, value_of
from holdfast.logs.rows import Row

_LONG, _LONGEST = 300, 4000  # a long line without a digit says nothing
_DIGIT = re.compile(r"\d")


def read_text(lines: Iterable[str], *, bars: bool = False) -> Iterator[Row]:
    """Rows of numbers, in the order in which they stand in the log; lines of one epoch that follow each other are one row.

    Progress bars count when they are at their end; with `bars`, at each of their steps. Of several ranks the first speaks.
    """
    epoch: float | None = None
    row: dict[str, float] = {}
    for shape, parts in _of_one_rank(lines):
        if shape.epoch is not None:
            line_epoch = float(filled(shape.epoch, parts))
            if epoch != line_epoch and row:
                yield row
                row = {}
            epoch = line_epoch
        pairs = _pairs(shape, parts) if bars or not _under_way(shape, parts) else {}
        if not pairs:
            continue
        here = _positions(shape, parts, epoch, bars=bars)
        if row and (pairs.keys() & row.keys() or here.get("step") != row.get("step")):
            yield row
            row = {}
        row |= here | pairs
    if row:
        yield row


def _of_one_rank(lines: Iterable[str]) -> Iterator[tuple[Shape, list[str]]]:
    """The lines that the lowest rank wrote, or that name none; what a carriage return writes over stands apart."""
    lowest = 1 << 30
    for line in lines:
        for text in line.replace("\b", "").split("\r") if "\r" in line or "\b" in line else (line,):
            if not text or len(text) > _LONGEST or (len(text) > _LONG and _DIGIT.search(text) is None):
                continue
            parts = parts_of(text)
            shape = shape_of(parts)
            if shape.rank is not None:
                rank = int(filled(shape.rank, parts))
                if rank > lowest:
                    continue
                lowest = rank
            if shape.pairs or shape.epoch is not None:
                yield shape, parts


def _pairs(shape: Shape, parts: list[str]) -> dict[str, float]:
    pairs: dict[str, float] = {}
    for named, slot in shape.pairs:
        name = filled(named, parts)
        if name not in pairs and (value := value_of(name, filled(slot, parts))) is not None:
            pairs[name] = value
    return pairs


def _under_way(shape: Shape, parts: list[str]) -> bool:
    """Whether the line is a progress bar that is not at its end."""
    if shape.bar is not None:
        return filled(shape.bar[0], parts) != filled(shape.bar[1], parts)
    return shape.under_way


def _positions(shape: Shape, parts: list[str], epoch: float | None, *, bars: bool) -> dict[str, float]:
    here = {"epoch": epoch} if epoch is not None else {}
    step = shape.bar[0] if bars and shape.bar is not None else shape.step
    return here | ({"step": float(filled(step, parts))} if step is not None else {})
