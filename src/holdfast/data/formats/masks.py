"""Images with masks: `images/` and `masks/` side by side (with the split above or below), matched by the name of the file.

There may be several folders of masks (binary and instances). One folder per sample, `name/images/*.png` with one mask per
object in `name/masks/*.png`, is understood as well.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter

from holdfast.data.listing import Listing, split_named, stem, suffix
from holdfast.data.problem import Fault
from holdfast.data.samples import Entry, ImageSet, names_in, no_label

MASKS = frozenset(
    {"masks", "mask", "instances", "instance", "segmentation", "segmentations", "seg", "gt", "labels", "annotations", "labelids"}
)
_IMAGES = frozenset({"images", "image", "imgs", "img", "jpegimages", "input", "inputs"})
_MASK_ENDINGS = frozenset({".png", ".tif", ".tiff", ".bmp", ".gif"})
_TAIL = re.compile(r"(_mask|_masks|_label|_labels|_seg|_gt|_instance|_instances|_labelids)$", re.IGNORECASE)


def recognise(listing: Listing, named: str | None) -> float | None:
    """How sure it is that these are images with masks."""
    if named is not None:
        return None
    images, masks = _parts(listing)
    stems = {stem(path) for path in images}
    of_masks = {_key(path) for path in masks}
    together = len(stems & of_masks)
    one_each = any(
        "/masks/" in path and f"/{path.split('/masks/')[0]}/images/" in f"/{image}" for path in masks[:1] for image in images
    )
    return 0.9 if (together and together >= 0.3 * len(stems)) or one_each else None


def _parts(listing: Listing) -> tuple[list[str], list[str]]:
    """The images and the masks, told apart by the folders they lie in."""
    images, masks = [], []
    for path in listing.images():
        folders = [folder.lower() for folder in path.split("/")[:-1]]
        if any(folder in MASKS for folder in folders):
            if suffix(path) in _MASK_ENDINGS:
                masks.append(path)
        elif any(folder in _IMAGES for folder in folders):
            images.append(path)
    return images, masks


def _key(path: str) -> str:
    return _TAIL.sub("", stem(path))


def read(listing: Listing, _: str | None) -> ImageSet:
    """List the samples."""
    images, masks = _parts(listing)
    by_place: dict[tuple[str, str], list[str]] = {}
    for path in masks:
        by_place.setdefault((split_named(path), _key(path)), []).append(path)
        by_place.setdefault(("folder", _sample_folder(path)), []).append(path)
    in_folder = Counter(map(_sample_folder, images))
    entries = []
    for image in images:
        own_masks = by_place.get((split_named(image), stem(image)))
        folder = _sample_folder(image)
        if not own_masks and in_folder[folder] == 1 and posixpath.dirname(image).lower().endswith("/images"):
            own_masks = by_place.get(("folder", folder))
        entries.append(Entry(split_named(image), image, None, tuple(own_masks or ())))
    used = {mask for entry in entries for mask in entry.masks}
    faults = [Fault("label-orphaned", path, 0, "no matching image") for path in masks if path not in used]
    folders = {folder_of_masks(path) for path in masks}
    for entry in entries:
        lacking = sorted(folders - {folder_of_masks(path) for path in entry.masks})
        faults += [Fault("label-missing", entry.image, 0, f"no mask for it in {folder}") for folder in lacking]
    classes = names_in(listing, "classes.txt") or names_in(listing, "labels.txt")
    return ImageSet("masks", listing.root, listing, entries, classes, no_label, bool(classes), False, None, faults)


def _sample_folder(path: str) -> str:
    """The folder of a sample that has folders of its own for its image and its masks."""
    return posixpath.dirname(posixpath.dirname(path)) or "."


def folder_of_masks(path: str) -> str:
    """The name of the folder that makes a file a mask: `masks`, `instances`."""
    return next((folder for folder in path.split("/")[:-1] if folder.lower() in MASKS), "")
