"""ImageSets/Main/*.txt of Pascal VOC: which image is in which split. An image may be in two of them, which is a leak."""

from __future__ import annotations

import posixpath

from holdfast.data.formats.splits import ALL, split_named, word_of_split
from holdfast.data.formats.voc_pairs import Pairs, key_of, part_of
from holdfast.data.listing import Listing, read_text, stem
from holdfast.data.problem import Fault

_FOLDER = "ImageSets/Main/"


def listed_images(listing: Listing, pairs: Pairs, faults: list[Fault]) -> list[tuple[str, str]]:
    """Split and image, each pair once; nothing where there are no lists. Names that are not there become faults."""
    finder = _Finder(pairs)
    found: dict[tuple[str, str], None] = {}
    lists, each_once = _wanted([path for path in listing.with_suffix(".txt") if _FOLDER in f"/{path}"])
    met: set[str] = set()
    for path, split in lists:
        for number, line in enumerate(read_text(listing.root / path, limit=1 << 28).splitlines(), 1):
            name = next(iter(line.split()), "")
            image = finder.find(name, path, split) if name else None
            if image and not (each_once and image in met):
                found[split, image] = None
                met.add(image)
            elif name and not image and name not in finder.orphans:
                faults.append(Fault("image-missing", path, number, finder.said(name)))
    return list(found)


def _wanted(paths: list[str]) -> tuple[list[tuple[str, str]], bool]:
    """The lists that count, with their splits, and whether each image counts once only.

    `train` and `val` leave out `trainval`, which is both once more, and `cat_train`, which is a part. Where only lists by class
    are there, `cat_train` is train. Lists that name no split say nothing of leaks.
    """
    by_word = [(path, split) for path in paths if (split := word_of_split(stem(path)))]
    by_end = [(path, split) for path in paths if (split := split_named(posixpath.basename(path))) != ALL]
    by_name = [(path, stem(path)) for path in paths]
    return sorted(by_word or by_end or by_name, key=lambda one: (one[1], one[0])), not (by_word or by_end)


class _Finder:
    """Images by the name that a list gives them."""

    def __init__(self, pairs: Pairs) -> None:
        self._by_key = {key_of(image): image for image in pairs.labels}
        self._by_name: dict[str, list[str]] = {}
        for image in pairs.labels:
            self._by_name.setdefault(stem(image), []).append(image)
        self.orphans = {stem(path) for path in pairs.orphans}

    def find(self, name: str, of_list: str, split: str) -> str | None:
        """The image in the folders of the list; or the only one of that name, or the only one of it in the split."""
        own = self._by_key.get((part_of(f"/{of_list}".partition(f"/{_FOLDER}")[0].strip("/")), name))
        some = [own] if own else self._by_name.get(name, [])
        if len(some) > 1:
            some = [image for image in some if split_named(image) == split]
        return some[0] if len(some) == 1 else None

    def said(self, name: str) -> str:
        """What is wrong with a name for which there is not one image."""
        count = len(self._by_name.get(name, ()))
        return f"{name[:200]!r}" + (f" may be any of {count} images in other folders" if count else "")
