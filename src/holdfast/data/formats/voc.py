"""Pascal VOC: for each image an XML file with its objects; ImageSets/Main/*.txt say which image is in which split.

The XML is read with expat and every entity is refused, so no file is fetched and none grows while it is read.
"""

from __future__ import annotations

import posixpath
from pathlib import Path

from holdfast.data.formats.splits import split_named
from holdfast.data.formats.voc_lists import listed_images
from holdfast.data.formats.voc_pairs import paired
from holdfast.data.formats.voc_xml import objects_of
from holdfast.data.listing import Listing, read_text
from holdfast.data.problem import Fault
from holdfast.data.samples import ClassKey, Entry, ImageSet, Label, Thing

_HEAD = 4096


def recognise(listing: Listing, named: str | None) -> float | None:
    """How sure it is that this is Pascal VOC."""
    if named is not None:
        return None
    some = listing.with_suffix(".xml")[:20]
    good = sum(_looks_like_one(listing.root / path) for path in some)
    return 0.95 if some and good >= len(some) / 2 and listing.images()[:1] else None


def _looks_like_one(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return b"<annotation" in file.read(_HEAD)
    except OSError:
        return False


def read(listing: Listing, _: str | None) -> ImageSet:
    """List the samples. Classes are names; those of classes.txt where there is one, otherwise those that are met."""
    pairs = paired(listing)
    faults: list[Fault] = []
    listed = listed_images(listing, pairs, faults) or [(split_named(image), image) for image in pairs.labels]
    entries = [Entry(split, image, pairs.labels[image]) for split, image in sorted(listed, key=lambda one: one[1])]
    faults += [Fault("label-orphaned", path, 0, "no image belongs to it") for path in pairs.orphans]
    classes, known = _classes(listing)
    return ImageSet("voc", listing.root, listing, entries, classes, read_label, known, True, None, faults)


def _classes(listing: Listing) -> tuple[dict[ClassKey, str], bool]:
    for path in listing.files:
        if posixpath.basename(path) in ("classes.txt", "labels.txt", "labelmap.txt"):
            names = [line.strip() for line in read_text(listing.root / path, limit=1 << 20).splitlines() if line.strip()]
            return {name: name for name in names}, True
    return {}, False


def read_label(root: Path, entry: Entry) -> Label:
    """Read one XML file; an object that cannot be read becomes a fault, the others are kept."""
    if entry.label is None:
        return Label([])
    try:
        found, size = objects_of(root / entry.label)
    except (ValueError, OSError) as error:
        return Label([], faults=(Fault("label-unreadable", entry.label, 0, str(error)[:200]),))
    faults = [Fault("label-unreadable", entry.label, one.line, one.wrong) for one in found if one.wrong]
    things = [Thing(one.name, one.box, None, one.line) for one in found if not one.wrong]
    return Label(things, False, size, tuple(faults))
