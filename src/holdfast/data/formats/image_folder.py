"""Image folders by class (`train/cat/1.jpg`, or `cat/1.jpg` where the set is not split), and folders of images without labels."""

from __future__ import annotations

from holdfast.data.listing import ALL, IMAGES, Listing, suffix, word_of_split
from holdfast.data.problem import Fault
from holdfast.data.samples import Entry, ImageSet, no_label

_OF_OTHER_FORMATS = frozenset({"images", "labels", "masks", "annotations", "jpegimages", "instances", "imagesets"})


def recognise(listing: Listing, named: str | None) -> float | None:
    """How sure it is that each folder is a class; less sure where there are images and nothing else."""
    images = listing.images() if named is None else []
    return (0.6 if _has_classes(images) else 0.3) if images else None


def _has_classes(images: list[str]) -> bool:
    """Whether most images lie in folders that may be classes."""
    top = _top(images)
    placed = [place for image in images if (place := _place(image, top))]
    return 2 * len(placed) >= len(images) and not {folder.lower() for _, folder in placed} & _OF_OTHER_FORMATS


def _top(images: list[str]) -> str:
    """The folder that holds the folders of splits and classes, `data/` of a project; empty where that is the whole set."""
    folders = [path.split("/")[:-1] for path in images]
    top: list[str] = []
    for names in zip(*folders, strict=False):
        if len(set(names)) > 1 or word_of_split(names[0]) or min(map(len, folders)) < len(top) + 2:
            break
        top.append(f"{names[0]}/")
    return "".join(top)


def _place(path: str, top: str) -> tuple[str, str] | None:
    """Split and class of an image; None where it is in no class folder."""
    folders = path.removeprefix(top).split("/")[:-1]
    split = word_of_split(folders[0]) if folders else None
    if split:
        folders = folders[1:]
    return (split or ALL, folders[0]) if folders else None


def read(listing: Listing, _: str | None) -> ImageSet:
    """List the samples; classes are the folders' names. A folder without a single image is a class without samples."""
    data = ImageSet("image-folder", listing.root, listing, [], {}, no_label)
    images = listing.images()
    if images and not _has_classes(images):
        data.entries = [Entry(_split(path), path) for path in images]
        data.classes_are_known = False
        data.notes.append("no labels: there are neither class folders nor label files, so only the images are checked")
        return data
    top = _top(images)
    for path in listing.below(top):
        placed = _place(path, top)
        if placed:
            data.classes.setdefault(placed[1], placed[1])
        if suffix(path) not in IMAGES:
            continue
        if placed is None:
            data.faults.append(Fault("label-missing", path, 0, "it is in no class folder"))
        data.entries.append(Entry(placed[0] if placed else ALL, path, class_id=placed[1] if placed else None))
    return data


def _split(path: str) -> str:
    """The split that a folder of the path names."""
    return next(filter(None, map(word_of_split, path.split("/")[:-1])), ALL)
