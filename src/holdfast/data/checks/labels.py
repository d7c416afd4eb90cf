"""Labels that are missing, empty, orphaned or cannot be read; paths that lead nowhere or out of the folder."""

from __future__ import annotations

from holdfast.data.problem import Fault
from holdfast.data.samples import Entry, Label


def presence(entry: Entry, label: Label) -> Fault | None:
    """Whether an image of a set with boxes has a label, and whether anything stands in it."""
    if entry.label is None:
        return Fault("label-missing", entry.image, 0, "no label file")
    if not label.things and not label.faults:
        return Fault("label-empty", entry.own_label or entry.image, 0, "no object")
    return None


def stated_size(entry: Entry, label: Label, width: int, height: int, orientation: int) -> Fault | None:
    """Compare the size that the label states with the image's. Turned sizes belong to `exif-rotation`."""
    if label.size is None or label.size == (width, height) or (orientation > 4 and label.size == (height, width)):
        return None
    stated = f"{label.size[0]} × {label.size[1]}"
    return Fault(
        "label-size",
        entry.own_label or entry.image,
        0,
        f"{stated}; the image has {width} × {height}",
    )
