"""Pascal VOC: for each image an XML file with its objects; ImageSets/Main/*.txt say which image is in which split.

The XML is read with expat and every entity is refused, so no file is fetched and none grows while it is read.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from pathlib import Path

from holdfast.data.formats.splits import ALL, split_named, word_of_split
from holdfast.data.formats.voc_xml import objects_of
from holdfast.data.listing import Listing, read_text, stem
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
    images: dict[str, str] = {}
    for path in listing.images():
        images.setdefault(stem(path), path)
    labels = {stem(path): path for path in listing.with_suffix(".xml")}
    faults: list[Fault] = []
    splits = dict(_splits(listing, set(images) | set(labels), faults))
    entries = [
        Entry(splits.get(name, ALL) if splits else split_named(image), image, labels.get(name)) for name, image in images.items()
    ]
    faults += [Fault("label-orphaned", path, 0, "no image belongs to it") for name, path in labels.items() if name not in images]
    classes, known = _classes(listing)
    if splits:
        entries = [entry for entry in entries if stem(entry.image) in splits]
    return ImageSet("voc", listing.root, listing, entries, classes, read_label, known, True, None, faults)


def _classes(listing: Listing) -> tuple[dict[ClassKey, str], bool]:
    for path in listing.files:
        if posixpath.basename(path) in ("classes.txt", "labels.txt", "labelmap.txt"):
            names = [line.strip() for line in read_text(listing.root / path, limit=1 << 20).splitlines() if line.strip()]
            return {name: name for name in names}, True
    return {}, False


def _splits(listing: Listing, names: set[str], faults: list[Fault]) -> Iterator[tuple[str, str]]:
    """Image name and split, from the lists; trainval is left out, as it is train and val once more."""
    lists = {stem(path): path for path in listing.with_suffix(".txt") if "ImageSets/Main/" in f"/{path}"}
    wanted = {name: path for name, path in lists.items() if word_of_split(name)} or lists
    for name, path in sorted(wanted.items()):
        for number, line in enumerate(read_text(listing.root / path, limit=1 << 28).splitlines(), 1):
            word = line.split()[0] if line.split() else ""
            if word and word not in names:
                faults.append(Fault("image-missing", path, number, repr(word[:200])))
            elif word:
                yield word, word_of_split(name) or name


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
