"""COCO: one JSON file per split with images, annotations and categories.

The files are read as a stream. Of an annotation only its place in the file is kept; it is read again when its image is looked at.
The official `annotations` folder also holds captions, keypoints and segments of the same images, and `--fix` writes a cleaned
file beside the original: only one file of a split is read for each image.
"""

from __future__ import annotations

import json
import math
import os
import posixpath
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from holdfast.data.json_stream import JsonRow, json_rows
from holdfast.data.listing import Listing, split_named
from holdfast.data.problem import Fault
from holdfast.data.samples import MOST_OBJECTS, ClassKey, Entry, ImageSet, Label, Thing, box_around
from holdfast.errors import UsageError

_HEAD = 1 << 16
_MOST_FAULTS = 10_000  # faults of one file
Id = int | str


def recognise(listing: Listing, named: str | None) -> float | None:
    """How sure it is that this is COCO: a JSON file that names images and categories near its beginning or its end."""
    files = [named] if named else listing.with_suffix(".json")
    return 0.98 if any(_looks_like_one(listing.root / path) for path in files if path.endswith(".json")) else None


def _looks_like_one(path: Path) -> bool:
    """Whether a JSON file names categories, and images or annotations, near its beginning or its end.

    One that is truncated may end before its categories: it is taken all the same, so that the damage is reported.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
            file.seek(max(0, path.stat().st_size - _HEAD))
            tail = file.read(_HEAD)
    except OSError:
        return False
    both = head + tail
    met = sum(word in both for word in (b'"images"', b'"annotations"', b'"categories"'))
    is_cut = not tail.rstrip().endswith(b"}")
    return met >= 2 and (b'"categories"' in both or is_cut)


def read(listing: Listing, named: str | None) -> ImageSet:
    """Read the JSON files of the set, or the one that was named; images are found by their name under the folder."""
    files = [named] if named else [path for path in listing.with_suffix(".json") if _looks_like_one(listing.root / path)]
    data = ImageSet("coco", listing.root, listing, [], {}, read_label, True, True, named)
    paths = ImagePaths(listing)
    taken: dict[str, list[set[str]]] = {}
    for file in sorted(files, key=_preference):
        content = _Content()
        try:
            for row in json_rows(listing.root / file):
                content.add(row)
        except (ValueError, OSError, RecursionError) as error:
            data.faults.append(Fault("label-unreadable", file, 0, str(error)[:200]))
            continue
        if named is not None or content.has_boxes:
            _add(data, file, content, paths, taken)
    if not taken and not data.faults:
        raise UsageError(f"{listing.root} holds no COCO file with boxes", fix="name the JSON file, or another --format")
    data.classes_are_known = bool(data.classes)
    return data


def _preference(file: str) -> tuple[bool, bool, str]:
    """Files named `instances` come first, cleaned ones last, then by name."""
    name = posixpath.basename(file).lower()
    return name.endswith(".cleaned.json"), not name.startswith("instances"), file


class ImagePaths:
    """The images of a folder, to be found by the `file_name` that a JSON file gives them: with or without their folder."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._by_name: dict[str, list[str]] = {}
        for path in listing.images():
            self._by_name.setdefault(posixpath.basename(path), []).append(path)

    def find(self, name: object, split: str) -> str | None:
        """The image of that name: at that path, or where only one such file is there, or the one in a folder of the split."""
        if not isinstance(name, str):
            return None
        exact = self._listing.find(name)
        if exact:
            return exact
        if name.startswith("/") or ".." in name.split("/"):
            return None
        paths = self._by_name.get(posixpath.basename(name), [])
        if len(paths) > 1:
            paths = [path for path in paths if split_named(path) == split and path.endswith(name)]
        return paths[0] if len(paths) == 1 else None


class _Image(NamedTuple):
    id: Id
    name: str
    start: int
    length: int


class _Content:
    """What is kept of one file while it streams by: 28 bytes of each annotation."""

    def __init__(self) -> None:
        self.images: list[_Image] = []
        self.categories: dict[ClassKey, str] = {}
        self.wrong: list[tuple[str, str]] = []  # code and words
        self.image_ids: dict[Id, int] = {}  # image ids of annotations, in the order they were met
        self._image, self._start, self._length, self._place = array("i"), array("q"), array("i"), array("i")
        self._ids = array("q")
        self._met: Counter[str] = Counter()
        self._boxes = False

    @property
    def has_boxes(self) -> bool:
        """Whether this is a file for detection: it has categories, and its annotations (if any) have a category or a box."""
        return "categories" in self._met and (self._boxes or not self._met["annotations"])

    def add(self, row: JsonRow) -> None:
        """The next row of the file."""
        self._met[row.key] += row.in_list and isinstance(row.value, dict)
        if row.in_list and isinstance(row.value, dict) and row.key in ("images", "annotations", "categories"):
            getattr(self, f"_add_to_{row.key}")(row)

    def tell(self, code: str, message: str) -> None:
        """Remember what is wrong with the file, up to a limit: it may be all of it."""
        if len(self.wrong) < _MOST_FAULTS:
            self.wrong.append((code, message[:200]))

    def _add_to_images(self, row: JsonRow) -> None:
        number, name = whole(row.value.get("id")), row.value.get("file_name")
        if isinstance(name, str) and isinstance(number, (int, str)):
            self.images.append(_Image(number, name, row.start, row.end - row.start))
        else:
            self.tell("label-unreadable", f"an image without id or file_name: {str(row.value)[:80]}")

    def _add_to_categories(self, row: JsonRow) -> None:
        number, name = whole(row.value.get("id")), str(row.value.get("name"))[:200]
        if not isinstance(number, int):
            return
        if number in self.categories:
            self.tell("id-duplicate", f"category id {number}: {self.categories[number]} and {name}")
        self.categories[number] = name

    def _add_to_annotations(self, row: JsonRow) -> None:
        image, number, place = whole(row.value.get("image_id")), whole(row.value.get("id")), self._met["annotations"]
        if isinstance(number, (int, str)):
            self._ids.append(number if isinstance(number, int) and abs(number) < 1 << 62 else hash(number))
        self._boxes = self._boxes or "category_id" in row.value or "bbox" in row.value
        if not isinstance(image, (int, str)):
            self.tell("label-unreadable", f"annotation {place} has no image_id")
            return
        self._image.append(self.image_ids.setdefault(image, len(self.image_ids)))
        self._start.append(row.start)
        self._length.append(row.end - row.start)
        self._place.append(place)

    def tell_shared_ids(self) -> None:
        """Images, and annotations, with the id of another one."""
        first: dict[Id, str] = {}
        for image in self.images:
            if image.id in first:
                self.tell("id-duplicate", f"image id {image.id}: {first[image.id]} and {image.name}")
            first.setdefault(image.id, image.name)
        ids, counts = np.unique(np.frombuffer(self._ids, np.int64), return_counts=True)
        for number, count in zip(ids[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True):
            self.tell("id-duplicate", f"annotation id {number}: {count:,} annotations")

    def spans(self) -> Iterator[tuple[_Image, bytes]]:
        """Each image with the places of its row and of its annotations in the file, as 64-bit numbers: start, length, place."""
        images = np.frombuffer(self._image, np.int32)
        order = np.argsort(images, kind="stable")
        table = np.stack([np.array(column, np.int64)[order] for column in (self._start, self._length, self._place)], axis=1)
        edges = np.searchsorted(images[order], np.arange(len(self.image_ids) + 1))
        for image in self.images:
            number = self.image_ids.get(image.id)
            own = table[edges[number] : edges[number + 1]] if number is not None else table[:0]
            yield image, np.array([image.start, image.length, 0], np.int64).tobytes() + own.tobytes()


def whole(number: object) -> object:
    """An id or size that a table of numbers wrote as 7.0, as 7."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _add(data: ImageSet, file: str, content: _Content, paths: ImagePaths, taken: dict[str, list[set[str]]]) -> None:
    """Add a file, unless `taken`, the images of the files of each split, has its images already."""
    split = split_named(file)
    images = {path for image in content.images if (path := paths.find(image.name, split))}
    others = taken.setdefault(split, [])
    if any(2 * len(images & other) > min(len(images), len(other)) for other in others):  # more than half of the smaller one
        data.notes.append(f"{file} was not read: it lists images of {split} that another file has")
        return
    others.append(images)
    data.classes.update(content.categories)
    content.tell_shared_ids()
    for image, spans in content.spans():
        path = paths.find(image.name, split)
        if path is None:
            content.tell("path-outside" if data.listing.leads_out(image.name) else "image-missing", repr(image.name))
        else:
            data.entries.append(Entry(split, path, file, spans=spans))
    met = {image.id for image in content.images}
    for number in content.image_ids:
        if number not in met:
            content.tell("label-orphaned", f"image_id {number} is of no image")
    data.faults += [Fault(code, file, 0, message) for code, message in content.wrong]
    if len(content.wrong) == _MOST_FAULTS:
        data.notes.append(f"{file}: only the first {_MOST_FAULTS:,} faults were counted")


def read_label(root: Path, entry: Entry) -> Label:
    """Read the annotations of one image from their places in the file; one that cannot be read becomes a fault."""
    things: list[Thing] = []
    faults: list[Fault] = []
    stated: tuple[int, int] | None = None
    try:
        file = os.open(root / str(entry.label), os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return Label([], faults=(Fault("label-unreadable", str(entry.label), 0, str(error)[:200]),))
    try:
        spans = np.frombuffer(entry.spans, np.int64).reshape(-1, 3)
        if len(spans) > MOST_OBJECTS:
            reason = f"{len(spans) - 1:,} annotations: of one image the first {MOST_OBJECTS:,} are read"
            faults.append(Fault("label-unreadable", entry.image, 0, reason))
        for start, length, place in spans[: MOST_OBJECTS + 1].tolist():
            row = json.loads(os.pread(file, length, start))
            if not place:
                width, height = whole(row.get("width")), whole(row.get("height"))
                stated = (width, height) if isinstance(width, int) and isinstance(height, int) else None
                continue
            try:
                wrong = _wrong_mask(row.get("segmentation"), stated)
                faults += [Fault("rle-size", entry.image, 0, f"annotation {row.get('id', place)}: {wrong}")] if wrong else []
                if row.get("iscrowd") != 1:
                    things.append(_thing(row, place))
            except (TypeError, ValueError, OverflowError) as error:
                faults.append(Fault("label-unreadable", entry.image, 0, f"annotation {row.get('id', place)}: {error}"[:200]))
    except (ValueError, OSError, AttributeError) as error:  # the file was changed meanwhile
        faults.append(Fault("label-unreadable", str(entry.label), 0, str(error)[:200]))
    finally:
        os.close(file)
    return Label(things, False, stated, tuple(faults))


def _thing(row: dict[str, Any], place: int) -> Thing:
    """One annotation. `line` is its place in the list, since a JSON file may have but one line."""
    kind = whole(row.get("category_id"))
    if not isinstance(kind, int):
        raise ValueError("no category_id")
    parts, polygon, box = row.get("segmentation"), None, row.get("bbox")
    if isinstance(parts, list) and parts and isinstance(parts[0], list):  # the first part
        points = tuple(float(value) for value in parts[0])
        polygon = points if len(points) >= 6 and len(points) % 2 == 0 and math.isfinite(sum(points)) else None
    if isinstance(box, list) and len(box) == 4:
        x, y, width, height = (float(value) for value in box)
        corners = (x, y, x + width, y + height)
    elif polygon:
        corners = box_around(polygon)
    else:
        raise ValueError("neither a bbox of four numbers nor a segmentation")
    if not math.isfinite(sum(corners)):
        raise ValueError("a number of the bbox is not finite")
    return Thing(kind, corners, polygon, place)


def _wrong_mask(mask: object, stated: tuple[int, int] | None) -> str:
    """What is wrong with the size of a run-length mask, in words: it must be the image's, and all runs together must fill it."""
    if not isinstance(mask, dict):
        return ""
    height, width = mask["size"] if isinstance(mask.get("size"), list) and len(mask["size"]) == 2 else (0, 0)
    if stated is not None and (width, height) != stated:
        return f"a mask of {width} × {height}; the image has {stated[0]} × {stated[1]}"
    counts = mask.get("counts")
    filled = sum(counts) if isinstance(counts, list) else _run_pixels(counts) if isinstance(counts, str) else 0
    return f"its runs are {filled:,} pixels, not {width} × {height}" if filled != width * height else ""


def _run_pixels(runs: str) -> int:
    """The pixels of compressed runs: five bits a letter, the last of them a sign; from the fourth run on as differences."""
    lengths: list[int] = []
    value = shift = 0
    for letter in runs:
        piece = ord(letter) - 48
        value |= (piece & 31) << shift
        shift += 5
        if not piece & 32:
            value -= (1 << shift) if piece & 16 else 0
            lengths.append(value + (lengths[-2] if len(lengths) > 2 else 0))
            value = shift = 0
    return sum(lengths)
