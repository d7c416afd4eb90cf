"""Images that are to be turned when shown (EXIF), with labels that fit only one of the two ways to read them."""

from __future__ import annotations

from holdfast.data.problem import Fault, Kind
from holdfast.data.samples import Entry, Label

ROTATION = Kind(
    "exif-rotation", "warning", "labelled images that their EXIF tag turns or mirrors: {count}",
    "store the pixels turned and without the tag (ImageOps.exif_transpose), then check the labels: "
    "some loaders turn such images and others do not, and the labels fit only one of them",
)  # fmt: skip
KINDS = (ROTATION,)
_TURNS = {2: "mirrored", 3: "turned by 180°", 4: "mirrored upside down", 5: "mirrored and turned by 90°", 6: "turned by 90°",
          7: "mirrored and turned by 270°", 8: "turned by 270°"}  # fmt: skip


def rotated(entry: Entry, label: Label, orientation: int, width: int, height: int) -> Fault | None:
    """Only where something is labelled by place: the class of a whole image does not depend on how it is turned."""
    if orientation == 1 or not (label.things or entry.masks):
        return None
    return Fault(ROTATION.code, entry.image, 0, f"{_TURNS[orientation]}; {_fits(label, orientation, width, height)}")


def _fits(label: Label, orientation: int, width: int, height: int) -> str:
    """Which way of reading the labels fit, in words."""
    return {
        "stored": "the boxes fit the image as it is stored, not as it is shown",
        "shown": "the boxes fit the image as it is shown, not as it is stored",
    }.get(way_of(label, orientation, width, height), "the labels do not say which way they fit")


def way_of(label: Label, orientation: int, width: int, height: int) -> str:
    """`stored` or `shown`: the way of reading the image that the labels fit; empty where that cannot be told."""
    if label.shares or orientation < 5 or width == height:
        return ""
    stored = label.size in (None, (width, height)) and all(
        one.box[2] <= width + 1 and one.box[3] <= height + 1 for one in label.things
    )
    turned = label.size in (None, (height, width)) and all(
        one.box[2] <= height + 1 and one.box[3] <= width + 1 for one in label.things
    )
    return "" if stored == turned else "stored" if stored else "shown"
