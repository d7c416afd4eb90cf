"""Boxes that are outside, have no area, an absurd shape, duplicates, or are of a class that does not exist.

A box is told once, under the first of these that it meets. BCCD justifies the limits: its 4,888 good boxes reach at most
0.0003 pixels over an edge and are at most 3.0 times as long as wide.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from holdfast.data.problem import Fault
from holdfast.data.samples import ClassKey, Corners, Entry, Label

KINDS = ("box-zero-area", "box-outside", "box-aspect", "box-duplicate", "class-out-of-range")

_LEAST = 0.5  # pixels: a side below this is nothing
_OVER = 1.0  # pixels by which a box may reach over an edge: tools round, and some count pixels from one
_LONGEST = 50.0


def box_faults(entry: Entry, label: Label, size: tuple[int, int], classes: Collection[ClassKey] | None) -> Iterator[Fault]:
    """Judge all boxes of an image of this size. No `classes`: any is right."""
    file = entry.own_label or entry.image
    met: set[tuple[ClassKey, Corners]] = set()
    (across, down), (most_right, most_down) = size if label.shares else (1, 1), (size[0] + _OVER, size[1] + _OVER)
    for kind, box, _, line in label.things:
        left, top, right, bottom = box
        left, top, right, bottom = left * across, top * down, right * across, bottom * down
        width, height = right - left, bottom - top
        code = ""
        if width < _LEAST or height < _LEAST:
            code = "box-zero-area"
        elif left < -_OVER or top < -_OVER or right > most_right or bottom > most_down:
            code = "box-outside"
        elif width > _LONGEST * height or height > _LONGEST * width:
            code = "box-aspect"
        elif (kind, box) in met:
            code = "box-duplicate"
        if code:
            corners = ", ".join(f"{corner:.4g}" for corner in (left, top, right, bottom))
            yield Fault(code, file, line, f"{kind} [{corners}] of {size[0]} × {size[1]}")
        if classes is not None and kind not in classes:
            yield Fault("class-out-of-range", file, line, f"class {kind!r}")
        met.add((kind, box))
