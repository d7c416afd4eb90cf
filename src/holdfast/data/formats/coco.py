"""COCO: one JSON file per split with images, annotations and categories."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from holdfast.data.formats.coco_files import has_boxes, in_order, looks_like_one, same_images
from holdfast.data.formats.coco_images import ImagePaths
from holdfast.data.formats.splits import split_named
from holdfast.data.listing import Listing
from holdfast.data.problem import Fault
from holdfast.data.samples import ClassKey, Entry, ImageSet, Label, Thing, box_around, no_label
from holdfast.errors import UsageError

_LARGEST = 4 << 30


def recognise(listing: Listing, named: str | None) -> float | None:
    """How sure it is that this is COCO: a JSON file that names images and categories near its beginning or its end."""
    found = [named] if named else listing.with_suffix(".json")
    return 0.98 if any(looks_like_one(listing.root / path) for path in found if path.endswith(".json")) else None


def read(listing: Listing, named: str | None) -> ImageSet:
    """Read the JSON files of the set, or the one that was named; images are found by their name under the folder."""
    files = [named] if named else [path for path in listing.with_suffix(".json") if looks_like_one(listing.root / path)]
    data = ImageSet("coco", listing.root, listing, [], {}, no_label, True, True, named)
    paths = ImagePaths(listing)
    taken: dict[str, list[set[str]]] = {}
    for file in in_order(files):
        _one_file(data, file, paths, taken)
    if not taken and not data.faults:
        raise UsageError(f"{listing.root} holds no COCO file with boxes", fix="name the JSON file, or another --format")
    data.classes_are_known = bool(data.classes)
    return data


def _one_file(data: ImageSet, file: str, paths: ImagePaths, taken: dict[str, list[set[str]]]) -> None:
    """Add a file, unless it has no boxes or `taken`, the images of the files of each split, has its images already."""
    content, split = _content(data, file), split_named(file)
    if data.described_by is None and not has_boxes(content):
        return
    images = {path for row in _dicts(content, "images") if (path := paths.find(row.get("file_name"), split))}
    others = taken.setdefault(split, [])
    if any(same_images(images, other) for other in others):
        data.notes.append(f"{file} was not read: it lists images of {split} that another file has")
        return
    others.append(images)
    _add(data, file, content, paths)


def _add(data: ImageSet, file: str, content: dict[str, Any], paths: ImagePaths) -> None:
    split = split_named(file)
    things, wrong = _things(content, file)
    data.faults += wrong
    data.classes.update(_categories(content))
    met = set()
    for image in _dicts(content, "images"):
        number, name = image.get("id"), image.get("file_name")
        if not isinstance(name, str) or not isinstance(number, (int, str)):
            data.faults.append(Fault("label-unreadable", file, 0, f"an image without id or file_name: {str(image)[:80]}"))
            continue
        met.add(number)
        path = paths.find(name, split)
        if path is None:
            outside = data.listing.leads_out(name)
            data.faults.append(Fault("path-outside" if outside else "image-missing", file, 0, repr(name[:200])))
            continue
        size = (image.get("width"), image.get("height"))
        stated = (size[0], size[1]) if isinstance(size[0], int) and isinstance(size[1], int) else None
        data.entries.append(Entry(split, path, file, known=Label(things.get(number, []), False, stated)))
    orphans = [number for number in things if number not in met]
    data.faults += [Fault("label-orphaned", file, 0, f"image_id {number} is of no image") for number in orphans]


def _content(data: ImageSet, file: str) -> dict[str, Any]:
    path = data.root / file
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError(f"larger than {_LARGEST >> 30} GB")
        with path.open("rb") as opened:
            content = json.load(opened)
        if isinstance(content, dict):
            return content
        raise ValueError("no JSON object")
    except (ValueError, OSError, RecursionError) as error:
        data.faults.append(Fault("label-unreadable", file, 0, str(error)[:200]))
        return {}


def _dicts(content: dict[str, Any], key: str) -> Iterator[dict[str, Any]]:
    rows = content.get(key)
    return (row for row in rows if isinstance(row, dict)) if isinstance(rows, list) else iter(())


def _categories(content: dict[str, Any]) -> dict[ClassKey, str]:
    return {row["id"]: str(row.get("name"))[:200] for row in _dicts(content, "categories") if isinstance(row.get("id"), int)}


def _things(content: dict[str, Any], file: str) -> tuple[dict[int | str, list[Thing]], list[Fault]]:
    """The objects of each image id, in the order of the file; those that cannot be read are faults."""
    things: dict[int | str, list[Thing]] = {}
    faults: list[Fault] = []
    for place, row in enumerate(_dicts(content, "annotations"), 1):
        image = row.get("image_id")
        if not isinstance(image, (int, str)):
            faults.append(Fault("label-unreadable", file, 0, f"annotation {place} has no image_id"))
            continue
        if row.get("iscrowd") == 1:
            things.setdefault(image, [])
            continue
        try:
            things.setdefault(image, []).append(_thing(row, place))
        except (TypeError, ValueError, OverflowError) as error:
            faults.append(Fault("label-unreadable", file, 0, f"annotation {row.get('id', place)}: {error}"[:200]))
    return things, faults


def _thing(row: dict[str, Any], place: int) -> Thing:
    """One annotation. `line` is its place in the list, since a JSON file may have but one line."""
    kind = row.get("category_id")
    if not isinstance(kind, int):
        raise ValueError("no category_id")
    polygon = _polygon(row.get("segmentation"))
    box = row.get("bbox")
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


def _polygon(segmentation: object) -> tuple[float, ...] | None:
    """The first part of a segmentation that is given as polygons."""
    if not isinstance(segmentation, list) or not segmentation or not isinstance(segmentation[0], list):
        return None
    points = tuple(float(value) for value in segmentation[0])
    return points if len(points) >= 6 and len(points) % 2 == 0 and math.isfinite(sum(points)) else None
