"""Labels that are missing, empty, orphaned or cannot be read; paths that lead nowhere or out of the folder."""

from __future__ import annotations

from holdfast.data.problem import Fault, Kind
from holdfast.data.samples import Entry, Label

MISSING = Kind(
    "label-missing", "warning", "labels that are missing: {count}",
    "label them, or add an empty label file where there is nothing to see; --fix leaves them out",
)  # fmt: skip
EMPTY = Kind("label-empty", "info", "labels without an object: {count}", "nothing, if there is nothing to see in these images")
ORPHANED = Kind(
    "label-orphaned", "warning", "labels that belong to no image: {count}", "bring the images back, or remove the labels"
)
UNREADABLE = Kind("label-unreadable", "critical", "labels or parts of labels that cannot be read: {count}", "mend or remove them")
STATED_SIZE = Kind(
    "label-size", "critical", "labels that state another size than the image has: {count}",
    "the boxes belong to another version of the image: scale them, or bring that image back",
)  # fmt: skip
IMAGE_MISSING = Kind(
    "image-missing",
    "critical",
    "images that a list or label names and that are not there: {count}",
    "bring them back, or mend the list",
)
SPLIT_MISSING = Kind(
    "split-missing", "critical", "splits that the description names and that are not there: {count}", "mend the path in it"
)
OUTSIDE = Kind(
    "path-outside", "critical", "paths that lead out of the folder, not read: {count}",
    "move the files into the folder, or allow the place with --also FOLDER",
)  # fmt: skip
DUPLICATE_ID = Kind(
    "id-duplicate", "critical", "ids that two images, annotations or categories share: {count}",
    "give each an id of its own: what reads COCO by id keeps only the last one",
)  # fmt: skip
CLASS_COUNT = Kind(
    "class-count", "critical", "descriptions whose nc and names differ: {count}",
    "let nc be the number of names: the model has nc outputs, and labels beyond them are an index error",
)  # fmt: skip
KINDS = (MISSING, EMPTY, ORPHANED, UNREADABLE, STATED_SIZE, IMAGE_MISSING, SPLIT_MISSING, OUTSIDE, DUPLICATE_ID, CLASS_COUNT)


def presence(entry: Entry, label: Label) -> Fault | None:
    """Whether an image of a set with boxes has a label, and whether anything stands in it."""
    if entry.label is None:
        return Fault(MISSING.code, entry.image, 0, "no label file")
    if not label.things and not label.faults:
        return Fault(EMPTY.code, entry.own_label or entry.image, 0, "no object")
    return None


def stated_size(entry: Entry, label: Label, width: int, height: int, orientation: int) -> Fault | None:
    """Compare the size that the label states with the image's. Turned sizes belong to `exif-rotation`."""
    if label.size is None or label.size == (width, height) or (orientation > 4 and label.size == (height, width)):
        return None
    stated = f"{label.size[0]} × {label.size[1]}"
    return Fault(
        STATED_SIZE.code,
        entry.own_label or entry.image,
        0,
        f"{stated}; the image has {width} × {height}",
    )
