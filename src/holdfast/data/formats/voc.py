"""Pascal VOC: for each image an XML file with its objects; ImageSets/Main/*.txt say which image is in which split.

The XML is read with expat and every entity is refused, so no file is fetched and none grows while it is read.
"""

from __future__ import annotations

import contextlib
import math
import posixpath
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

from holdfast.data.listing import ALL, Listing, read_bytes, read_text, split_named, stem, word_of_split
from holdfast.data.problem import Fault
from holdfast.data.samples import LARGEST_LABEL, ClassKey, Corners, Entry, ImageSet, Label, Thing

# Which XML file of Pascal VOC belongs to which image: the same name may stand in `train` and in `val`.

_OF_IMAGES = frozenset({"images", "image", "imgs", "img", "jpegimages"})
_OF_LABELS = frozenset({"annotations", "annotation", "annots", "labels", "label", "xml", "xmls"})
Key = tuple[str, str]


def key_of(path: str) -> Key:
    """What an image and its label have in common: the folders, without those that say what lies in them, and the name."""
    return part_of(posixpath.dirname(path)), stem(path)


def part_of(folder: str) -> str:
    """A folder without the parts `images`, `annotations`, …: `train/images` and `annotations/train` are both `train`."""
    return "/".join(part for part in folder.split("/") if part.lower() not in _OF_IMAGES | _OF_LABELS)


def _split_and_name(path: str) -> Key:
    return split_named(path), stem(path)


def paired(listing: Listing) -> tuple[dict[str, str | None], list[str]]:
    """Images with their labels, and labels without an image.

    They are paired by folder and name; what is left, by split and name, then by the name alone where that is clear. An image in
    a folder of labels is a mask where another one has its name.
    """
    among_labels = sorted(listing.images(), key=lambda path: any(part.lower() in _OF_LABELS for part in path.split("/")[:-1]))
    images = list({key_of(path): path for path in reversed(among_labels)}.values())[::-1]
    labels = list({key_of(path): path for path in listing.with_suffix(".xml")}.values())
    label_of: dict[str, str] = {}
    for key in (key_of, _split_and_name, lambda path: ("", stem(path))):
        used = set(label_of.values())
        label_of |= {image: label for image, label in _clear(key, images, labels) if label not in used}
    used = set(label_of.values())
    orphans = [label for label in labels if label not in used]
    folders = {posixpath.dirname(image) for image in label_of}
    samples = {_split_and_name(image) for image in images if posixpath.dirname(image) in folders}
    views = {image for image in images if posixpath.dirname(image) not in folders and _split_and_name(image) in samples}
    return {image: label_of.get(image) for image in images if image not in views}, orphans  # views: SegmentationClass, …


def _clear(key: Callable[[str], Key], images: list[str], labels: list[str]) -> Iterator[tuple[str, str]]:
    """Pairs with the same key. Of several labels none is taken; of several images the first, unless they are in two splits."""
    by_key, with_label = _gathered(key, images), _gathered(key, labels)
    for name, some in by_key.items():
        its_own = with_label.get(name, [])
        if len(its_own) == 1 and len({split_named(path) for path in [*some, *its_own]} - {ALL}) <= 1:
            yield some[0], its_own[0]


def _gathered(key: Callable[[str], Key], paths: Iterable[str]) -> dict[Key, list[str]]:
    by_key: dict[Key, list[str]] = {}
    for path in paths:
        by_key.setdefault(key(path), []).append(path)
    return by_key


# ImageSets/Main/*.txt of Pascal VOC: which image is in which split. An image may be in two of them, which is a leak.

_FOLDER = "ImageSets/Main/"


def listed_images(listing: Listing, images: Iterable[str], orphans: list[str], faults: list[Fault]) -> list[tuple[str, str]]:
    """Split and image, each pair once; nothing where there are no lists. Names that are not there become faults."""
    by_key, by_name = {key_of(image): image for image in images}, _gathered(lambda path: ("", stem(path)), images)
    without_image, met = {stem(path) for path in orphans}, set[str]()
    listed: dict[tuple[str, str], None] = {}
    lists, each_once = _wanted([path for path in listing.with_suffix(".txt") if _FOLDER in f"/{path}"])
    for path, split in lists:
        above = part_of(f"/{path}".partition(f"/{_FOLDER}")[0].strip("/"))
        for number, line in enumerate(read_text(listing.root / path, limit=1 << 28).splitlines(), 1):
            name = next(iter(line.split()), "")
            own = by_key.get((above, name))
            called = by_name.get(("", name), [])
            some = [own] if own else called if len(called) < 2 else [image for image in called if split_named(image) == split]
            if len(some) == 1 and not (each_once and some[0] in met):
                listed[split, some[0]] = None
                met.add(some[0])
            elif name and len(some) != 1 and name not in without_image:
                more = f" may be any of {len(called)} images in other folders" if called else ""
                faults.append(Fault("image-missing", path, number, f"{name[:200]!r}{more}"))
    return list(listed)


def _wanted(paths: list[str]) -> tuple[list[tuple[str, str]], bool]:
    """The lists that count, with their splits, and whether each image counts once only.

    `train` and `val` leave out `trainval`, which is both once more, and `cat_train`, which is a part. Where only lists by class
    are there, `cat_train` is train. Lists that name no split say nothing of leaks.
    """
    by_word = [(path, split) for path in paths if (split := word_of_split(stem(path)))]
    by_end = [(path, split) for path in paths if (split := split_named(posixpath.basename(path))) != ALL]
    by_name = [(path, stem(path)) for path in paths]
    return sorted(by_word or by_end or by_name, key=lambda pair: (pair[1], pair[0])), not (by_word or by_end)


# One annotation file of Pascal VOC, read with expat: line numbers are kept, and every entity declaration is refused.

_DEEPEST = 64
_SIDES = ("xmin", "ymin", "xmax", "ymax")


class Found(NamedTuple):
    """One `<object>`: its name, its box, the line it begins on; or what is wrong with it."""

    name: str
    box: Corners
    line: int
    wrong: str = ""


class _Reader:
    """Follows the elements of one file; keeps only the texts that matter."""

    def __init__(self) -> None:
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.EntityDeclHandler = _refuse
        self.path: list[str] = []
        self.found: list[Found] = []
        self.sizes: dict[str, str] = {}
        self._values: dict[str, str] = {}
        self._line = 0
        self._words = ""

    def _start(self, name: str, _: dict[str, str]) -> None:
        self.path.append(name)
        if len(self.path) > _DEEPEST:
            raise ValueError("elements are nested too deep")
        if len(self.path) == 1 and name != "annotation":
            raise ValueError(f"<{name[:40]}> where <annotation> must be")
        if self.path[1:] == ["object"]:
            self._values, self._line = {}, self.parser.CurrentLineNumber
        self._words = ""

    def _text(self, text: str) -> None:
        if len(self._words) < 1000:
            self._words += text

    def _end(self, name: str) -> None:
        inner = self.path[1:]
        self.path.pop()
        if inner[:1] == ["object"]:
            if inner == ["object"]:
                self.found.append(_object(self._values, self._line))
            elif inner == ["object", "name"] or (len(inner) == 3 and inner[1] == "bndbox"):
                self._values[name] = self._words.strip()
        elif inner[:1] == ["size"] and len(inner) == 2:
            self.sizes[name] = self._words.strip()
        self._words = ""


def _refuse(name: str, *_: object) -> None:
    raise ValueError(f"it declares the entity {name[:40]!r}, which no annotation needs; not read")


def _object(values: dict[str, str], line: int) -> Found:
    name = values.get("name", "")[:200]
    try:
        left, top, right, bottom = (float(values[side]) for side in _SIDES)
    except KeyError as error:
        return Found(name, (0, 0, 0, 0), line, f"the object has no {error.args[0]}")
    except ValueError:
        return Found(name, (0, 0, 0, 0), line, "a box coordinate is not a number")
    box = (left, top, right, bottom)
    wrong = "the object has no name" if not name else "" if math.isfinite(sum(box)) else "a box coordinate is not finite"
    return Found(name, box, line, wrong)


def objects_of(path: Path) -> tuple[list[Found], tuple[int, int] | None]:
    """The objects of a file, and the size of the image as it states it; ValueError with the reason where it cannot be read."""
    reader = _Reader()
    try:
        reader.parser.Parse(read_bytes(path, limit=LARGEST_LABEL), True)
    except expat.ExpatError as error:
        raise ValueError(f"no XML: {error}") from None
    sides = [reader.sizes.get(side, "") for side in ("width", "height")]
    width, height = (int(side) if side.isdecimal() and len(side) < 10 else 0 for side in sides)
    return reader.found, (width, height) if width and height else None


_HEAD = 4096


def recognise(listing: Listing, named: str | None) -> float | None:
    """How sure it is that this is Pascal VOC."""
    if named is not None:
        return None
    some, good = listing.with_suffix(".xml")[:20], 0
    for path in some:
        with contextlib.suppress(OSError), (listing.root / path).open("rb") as file:
            good += b"<annotation" in file.read(_HEAD)
    return 0.95 if some and good >= len(some) / 2 and listing.images()[:1] else None


def read(listing: Listing, _: str | None) -> ImageSet:
    """List the samples. Classes are names; those of classes.txt where there is one, otherwise those that are met."""
    labels, orphans = paired(listing)
    faults: list[Fault] = []
    listed = listed_images(listing, labels, orphans, faults) or [(split_named(image), image) for image in labels]
    entries = [Entry(split, image, labels[image]) for split, image in sorted(listed, key=lambda pair: pair[1])]
    faults += [Fault("label-orphaned", path, 0, "no matching image") for path in orphans]
    classes, are_listed = _classes(listing)
    return ImageSet("voc", listing.root, listing, entries, classes, read_label, are_listed, True, None, faults)


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
        objects, size = objects_of(root / entry.label)
    except (ValueError, OSError) as error:
        return Label([], faults=(Fault("label-unreadable", entry.label, 0, str(error)[:200]),))
    faults = [Fault("label-unreadable", entry.label, item.line, item.wrong) for item in objects if item.wrong]
    things = [Thing(item.name, item.box, None, item.line) for item in objects if not item.wrong]
    return Label(things, False, size, tuple(faults))
