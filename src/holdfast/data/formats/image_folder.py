"""Image folders by class: `train/cat/1.jpg`, or `cat/1.jpg` where the set is not split."""

from __future__ import annotations

from holdfast.data.listing import ALL, IMAGES, Listing, suffix, word_of_split
from holdfast.data.problem import Fault
from holdfast.data.samples import ClassKey, Entry, ImageSet, no_label

_OF_OTHER_FORMATS = frozenset({"images", "labels", "masks", "annotations", "jpegimages", "instances", "imagesets"})


def recognise(listing: Listing, named: str | None) -> float | None:
    """How sure it is that each folder is a class."""
    if named is not None:
        return None
    images = listing.images()
    if not images:
        return None
    placed = [_place(path) for path in images]
    folders = {parts[1].lower() for parts in placed if parts}
    return 0.6 if folders and not folders & _OF_OTHER_FORMATS and len([one for one in placed if one]) >= len(images) / 2 else 0.1


def _place(path: str) -> tuple[str, str] | None:
    """Split and class of an image; None where it is in no class folder."""
    folders = path.split("/")[:-1]
    split = word_of_split(folders[0]) if folders else None
    if split:
        folders = folders[1:]
    return (split or ALL, folders[0]) if folders else None


def read(listing: Listing, _: str | None) -> ImageSet:
    """List the samples; classes are the folders' names. A folder without a single image is a class without samples."""
    entries, faults = [], []
    classes: dict[ClassKey, str] = {}
    for path in listing.files:
        placed = _place(path)
        if placed:
            classes.setdefault(placed[1], placed[1])
        if suffix(path) not in IMAGES:
            continue
        if placed is None:
            faults.append(Fault("label-missing", path, 0, "it is in no class folder"))
        entries.append(Entry(placed[0] if placed else ALL, path, class_id=placed[1] if placed else None))
    return ImageSet("image-folder", listing.root, listing, entries, classes, no_label, True, False, None, faults)
