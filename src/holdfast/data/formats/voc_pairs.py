"""Which XML file of Pascal VOC belongs to which image: the same name may stand in `train` and in `val`."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from holdfast.data.formats.splits import ALL, split_named
from holdfast.data.listing import Listing, stem

_OF_IMAGES = frozenset({"images", "image", "imgs", "img", "jpegimages"})
_OF_LABELS = frozenset({"annotations", "annotation", "annots", "labels", "label", "xml", "xmls"})
Key = tuple[str, str]


class Pairs(NamedTuple):
    """Images with their labels, in the order of the listing; and labels without an image."""

    labels: dict[str, str | None]
    orphans: list[str]


def key_of(path: str) -> Key:
    """What an image and its label have in common: the folders, without those that say what lies in them, and the name."""
    return part_of(posixpath.dirname(path)), stem(path)


def part_of(folder: str) -> str:
    """A folder without the parts `images`, `annotations`, …: `train/images` and `annotations/train` are both `train`."""
    return "/".join(part for part in folder.split("/") if part.lower() not in _OF_IMAGES | _OF_LABELS)


def paired(listing: Listing) -> Pairs:
    """Pair by folder and name; what is left, by split and name, then by the name alone where that is clear."""
    images = _one_for_each_key(sorted(listing.images(), key=_is_among_labels))
    labels = list({key_of(path): path for path in listing.with_suffix(".xml")}.values())
    found: dict[str, str] = {}
    for key in (key_of, _split_and_name, lambda path: ("", stem(path))):
        used = set(found.values())
        found |= {image: label for image, label in _clear(key, images, labels) if label not in used}
    used = set(found.values())
    masks = _without_labels(images, found)
    return Pairs(
        {image: found.get(image) for image in images if image not in masks}, [label for label in labels if label not in used]
    )


def _is_among_labels(image: str) -> bool:
    """Whether an image lies in a folder of labels: it is a mask then, where another one has its name."""
    return any(part.lower() in _OF_LABELS for part in image.split("/")[:-1])


def _one_for_each_key(images: Iterable[str]) -> list[str]:
    first: dict[Key, str] = {}
    for path in images:
        first.setdefault(key_of(path), path)
    return list(first.values())


def _split_and_name(path: str) -> Key:
    return split_named(path), stem(path)


def _clear(key: Callable[[str], Key], images: list[str], labels: list[str]) -> Iterator[tuple[str, str]]:
    """Pairs with the same key. Of several labels none is taken; of several images the first, unless they are in two splits."""
    by_key, with_label = _gathered(key, images), _gathered(key, labels)
    for name, some in by_key.items():
        its_own = with_label.get(name, [])
        if len(its_own) == 1 and len({split_named(path) for path in [*some, *its_own]} - {ALL}) <= 1:
            yield some[0], its_own[0]


def _gathered(key: Callable[[str], Key], paths: Iterable[str]) -> dict[Key, list[str]]:
    found: dict[Key, list[str]] = {}
    for path in paths:
        found.setdefault(key(path), []).append(path)
    return found


def _without_labels(images: list[str], found: dict[str, str]) -> set[str]:
    """Masks and other views (SegmentationClass, …): in folders without any label, of images that stand in one with labels."""
    folders = {posixpath.dirname(image) for image in found}
    samples = {_split_and_name(image) for image in images if posixpath.dirname(image) in folders}
    return {image for image in images if posixpath.dirname(image) not in folders and _split_and_name(image) in samples}
