"""One label file of YOLO with keypoints: `class x y width height`, then `x y` or `x y visible` for each point of `kpt_shape`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from holdfast.data.formats.yolo_labels import MOST_TOLD, box_of, numbers_of, text_of
from holdfast.data.problem import Fault
from holdfast.data.samples import Entry, Label, Thing

_OVER = 0.01  # shares of the image by which a point may reach over an edge: Ultralytics allows as much


class Shape(NamedTuple):
    """How many points an object has, and how many numbers each of them."""

    points: int
    width: int


def shape_of(setting: object) -> Shape | None:
    """What `kpt_shape` in data.yaml says; None where it is not there or no shape."""
    if not isinstance(setting, list) or len(setting) != 2 or not all(type(one) is int for one in setting):
        return None
    points, width = setting
    return Shape(points, width) if points > 0 and width in (2, 3) else None


def read_pose(shape: Shape, root: Path, entry: Entry) -> Label:
    """Read the label of one image; a line that cannot be read, or with a point outside the image, becomes a fault."""
    text = text_of(root, entry)
    if isinstance(text, Label):
        return text
    things: list[Thing] = []
    faults: list[Fault] = []
    for number, line in enumerate(text.splitlines(), 1):
        code, wrong = "label-unreadable", ""
        try:
            if words := line.split():
                values = _values(words, shape)
                things.append(box_of(values, number))
                code, wrong = "box-outside", _outside(values, shape)
        except (ValueError, OverflowError) as error:
            wrong = str(error)[:200]
        if wrong and len(faults) < MOST_TOLD:
            faults.append(Fault(code, str(entry.label), number, wrong))
    return Label(things, True, None, tuple(faults))


def _values(words: list[str], shape: Shape) -> list[float]:
    wanted = 5 + shape.points * shape.width
    if len(words) != wanted:
        keypoints = f"{shape.points} × {shape.width} for the keypoints of kpt_shape"
        raise ValueError(f"{len(words)} numbers where there must be {wanted}: 5 for the box and {keypoints}")
    return numbers_of(words)


def _outside(values: list[float], shape: Shape) -> str:
    """The first visible point that lies outside the image, in words; empty where there is none."""
    for place in range(shape.points):
        start = 5 + place * shape.width
        x, y, *visible = values[start : start + shape.width]
        if (not visible or visible[0] > 0) and (min(x, y) < -_OVER or max(x, y) > 1 + _OVER):
            return f"keypoint {place + 1} at {x:.4g}, {y:.4g}, in shares of the image"
    return ""
