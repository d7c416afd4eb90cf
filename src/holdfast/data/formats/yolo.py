"""YOLO: a data.yaml, images, and for each image a text file with a line `class x y width height` or a polygon for each object.

Where data.yaml names a `kpt_shape`, the numbers behind the box are keypoints.
Without data.yaml, folders `images` and `labels` side by side are taken for it; the classes are then those that are met.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.data.listing import IMAGES, Listing, read_bytes, read_text, split_named, suffix
from holdfast.data.problem import Fault
from holdfast.data.samples import (
    LARGEST_LABEL,
    MOST_OBJECTS,
    ClassKey,
    Entry,
    ImageSet,
    Label,
    ReadLabel,
    Thing,
    box_around,
    names_in,
)
from holdfast.errors import UsageError

# One label file: `class x y width height` or `class x y x y x y …` a line, in fractions of the image's size. With keypoints,
# `x y` or `x y visible` follows the box for each point of `kpt_shape`.

_MOST_FAULTS = 20  # of one file
_BOM = "\ufeff"  # the mark that editors on Windows write at the beginning of a text file
_OVER = 0.01  # of the image by which a keypoint may reach over an edge: Ultralytics allows as much
_new = tuple.__new__  # a Thing without the call of its constructor: twice as fast, and there are thousands


class Shape(NamedTuple):
    """How many keypoints an object has, and how many numbers each of them: `kpt_shape` in data.yaml."""

    points: int
    width: int


def read_label(root: Path, entry: Entry, shape: Shape | None = None) -> Label:
    """Read the label of one image; a line that cannot be read, or has a keypoint outside the image, becomes a fault."""
    if entry.label is None:
        return Label([], shares=True)
    try:
        content = read_bytes(f"{root}/{entry.label}" if entry.label[0] != "/" else entry.label, limit=LARGEST_LABEL)
    except (OSError, ValueError) as error:
        return Label([], shares=True, faults=(Fault("label-unreadable", entry.label, 0, str(error)),))
    text = content.decode("utf-8", errors="replace")
    if text.startswith(_BOM):
        label = _line_by_line(entry.label, text[1:].splitlines()[:MOST_OBJECTS], shape)
        fault = Fault("label-bom", entry.label, 1, "it begins with the bytes EF BB BF")
        return label._replace(faults=(fault, *label.faults))
    lines = text.splitlines()
    if len(lines) > MOST_OBJECTS:
        reason = f"{len(lines):,} lines: an image has {MOST_OBJECTS:,} objects at the most"
        return Label([], shares=True, faults=(Fault("label-unreadable", entry.label, 0, reason),))
    boxes = _only_boxes(text, lines) if shape is None else None
    return Label(boxes, True) if boxes is not None else _line_by_line(entry.label, lines, shape)


def read_pose(shape: Shape, root: Path, entry: Entry) -> Label:
    """The same with keypoints; the shape comes first, so that a partial of it can be sent to other processes."""
    return read_label(root, entry, shape)


def _only_boxes(text: str, lines: list[str]) -> list[Thing] | None:
    """The usual file at once: five numbers on every line; None for any other. Half of the time of a quick look is spent here.

    A line of four beside one of six would put a coordinate in the place of a class, which is no whole number.
    """
    fields = text.split()
    if len(fields) != 5 * len(lines) or text.count(" ") != 4 * len(lines):
        return None
    try:
        values = list(map(float, fields))
        kinds = list(map(int, values[0::5]))
    except (ValueError, OverflowError):
        return None
    if kinds != values[0::5] or not isfinite(sum(values)):
        return None
    columns = (kinds, values[1::5], values[2::5], values[3::5], values[4::5], range(1, len(lines) + 1))
    return [
        _new(Thing, (kind, (x - across / 2, y - down / 2, x + across / 2, y + down / 2), None, number))
        for kind, x, y, across, down, number in zip(*columns, strict=True)
    ]


def _line_by_line(file: str, lines: list[str], shape: Shape | None) -> Label:
    things: list[Thing] = []
    faults: list[Fault] = []
    for number, line in enumerate(lines, 1):
        code, wrong = "label-unreadable", ""
        try:
            if fields := line.split():
                values = _values(fields, shape)
                things.append(_thing(values, number, is_box=shape is not None))
                code, wrong = "box-outside", _outside(values, shape) if shape else ""
        except (ValueError, OverflowError) as error:
            wrong = str(error)[:200]
        if wrong and len(faults) < _MOST_FAULTS:
            faults.append(Fault(code, file, number, wrong))
    return Label(things, True, None, tuple(faults))


def _values(fields: list[str], shape: Shape | None) -> list[float]:
    """The numbers of a line, of which the first is a class; ValueError where one is none, or they are too few or many."""
    wanted = 5 + shape.points * shape.width if shape else len(fields)
    if shape and len(fields) != wanted:
        keypoints = f"{shape.points} × {shape.width} for the keypoints of kpt_shape"
        raise ValueError(f"{len(fields)} numbers where there must be {wanted}: 5 for the box and {keypoints}")
    values = [float(word) for word in fields]
    if not isfinite(sum(values)):
        raise ValueError(f"not a finite number in {' '.join(fields)[:80]!r}")
    if int(values[0]) != values[0]:
        raise ValueError(f"class {fields[0][:40]} is not an integer")
    return values


def _thing(values: list[float], number: int, *, is_box: bool) -> Thing:
    """A box, also with a score behind it as predictions have, or a polygon; ValueError with what is wrong with anything else."""
    points = values[1:]
    if is_box or len(values) in (5, 6):
        x, y, across, down = points[:4]
        return Thing(int(values[0]), (x - across / 2, y - down / 2, x + across / 2, y + down / 2), None, number)
    if len(points) < 6 or len(points) % 2:
        raise ValueError(f"{len(values)} numbers are neither a box (5) nor a polygon (7, 9, 11 …)")
    return Thing(int(values[0]), box_around(points), tuple(points), number)


def _outside(values: list[float], shape: Shape) -> str:
    """The first visible keypoint that lies outside the image, in words; empty where there is none."""
    for place in range(shape.points):
        start = 5 + place * shape.width
        x, y, *visible = values[start : start + shape.width]
        if (not visible or visible[0] > 0) and (min(x, y) < -_OVER or max(x, y) > 1 + _OVER):
            return f"keypoint {place + 1} at {x:.4g}, {y:.4g}, in fractions of the image"
    return ""


_SPLITS = ("train", "val", "valid", "test")
_MOST_CLASSES = 100_000
_NOT_LABELS = frozenset({"classes.txt", "readme.txt", "labels.txt", "notes.txt"})


def recognise(listing: Listing, named: str | None) -> float | None:
    """How sure it is that this is YOLO."""
    if _description(listing, named) is not None:
        return 1.0
    texts = {path[: -len(".txt")] for path in listing.with_suffix(".txt")}
    images = listing.images()[:50]
    share = sum(posixpath.splitext(label_path(path))[0] in texts for path in images) / max(len(images), 1)
    return 0.8 if share > 0.5 else None


def _description(listing: Listing, named: str | None) -> str | None:
    """The YAML file that describes the set: it must name or count classes, and name at least one split.

    It lies at the top, or is the only data.yaml below: from a project's folder, that of `data/`.
    """
    all_of_them = [named] if named else listing.with_suffix(".yaml", ".yml")
    below = [path for path in all_of_them if path.endswith("/data.yaml")]
    files = [path for path in all_of_them if "/" not in path or path == named or below == [path]]
    for path in sorted(files, key=lambda file: ("/" in file, file != "data.yaml")):
        if suffix(path) in (".yaml", ".yml"):
            settings = settings_of(listing.root / path)
            if ("names" in settings or "nc" in settings) and any(split in settings for split in _SPLITS):
                return path
    return None


def settings_of(path: Path) -> dict[str, Any]:
    """What a data.yaml says; nothing where it cannot be read."""
    import yaml

    try:
        settings = yaml.safe_load(read_text(path, limit=1 << 20))
    except (yaml.YAMLError, ValueError, OSError, RecursionError):
        return {}
    return settings if isinstance(settings, dict) else {}


def read(listing: Listing, named: str | None) -> ImageSet:
    """List the samples of a YOLO set."""
    described = _description(listing, named)
    if described is None:
        return _without_description(listing)
    settings = settings_of(listing.root / described)
    base = posixpath.dirname(described)
    path = settings.get("path")
    if isinstance(path, str) and not path.startswith("/"):
        inner = posixpath.normpath(posixpath.join(base, path))
        base = inner if any(True for _ in listing.below(inner)) else base
    faults: list[Fault] = []
    entries: list[Entry] = []
    for split in _SPLITS:
        wanted = settings.get(split)
        for place in wanted if isinstance(wanted, list) else [wanted]:
            if isinstance(place, str) and place:
                name = "val" if split == "valid" else split
                entries += [_entry(listing, name, image) for image in _images(listing, base, place, described, faults)]
    faults += _orphans(listing, entries)
    classes = _classes(settings.get("names"), settings.get("nc"), described, faults)
    reader: ReadLabel = read_label
    shape = settings.get("kpt_shape")
    if isinstance(shape, list) and [type(count) for count in shape] == [int, int] and shape[0] > 0 and shape[1] in (2, 3):
        reader = partial(read_pose, Shape(*shape))
    return ImageSet("yolo", listing.root, listing, entries, classes, reader, bool(classes), True, described, faults)


def _images(listing: Listing, base: str, where: str, described: str, faults: list[Fault]) -> Iterable[str]:
    """The images of a split: those of a folder, or those that a text file lists."""
    inside = _inside(listing, base, where)
    if inside is None:
        kind = "path-outside" if listing.leads_out(where, relative_to=base) else "split-missing"
        with_slashes = where.replace("\\", "/")
        there = f"there, but {with_slashes} is" if _inside(listing, base, with_slashes) else "there"
        faults.append(Fault(kind, described, 0, f"{where!r} is not {'inside the folder' if kind == 'path-outside' else there}"))
        return []
    if suffix(inside) != ".txt":
        return listing.images(inside)
    return list(_from_list(listing, inside, faults))


def _inside(listing: Listing, base: str, where: str) -> str | None:
    """The folder or list that is meant. One export writes `../train/images` for `train/images`: that is understood."""
    if where.startswith("/"):
        listed = listing.find(where)
        folder = Path(where).resolve()
        for parent, name in ((listing.root, ""), *((allowed, allowed.as_posix()) for allowed in listing.allowed)):
            if listed is None and (folder == parent or parent in folder.parents):
                listed = posixpath.join(name, folder.relative_to(parent).as_posix())
        return listed
    for tried in (where, where.lstrip("./")):
        path = posixpath.normpath(posixpath.join(base, tried))
        if not path.startswith("..") and (path in listing.files or any(True for _ in listing.below(path))):
            return path
    return None


def _from_list(listing: Listing, path: str, faults: list[Fault]) -> Iterator[str]:
    for number, line in enumerate(read_text(listing.root / path, limit=1 << 30).splitlines(), 1):
        name = line.strip()
        if not name:
            continue
        image = listing.find(name, relative_to=posixpath.dirname(path)) or listing.find(name)
        if image is not None and suffix(image) in IMAGES:
            yield image
        else:
            outside = listing.leads_out(name, relative_to=posixpath.dirname(path))
            faults.append(Fault("path-outside" if outside else "image-missing", path, number, repr(name[:200])))


def label_path(image: str) -> str:
    """Where the label of an image is: in the last folder `images` of its path `labels` stands instead."""
    start, middle, end = f"/{image}".rpartition("/images/")
    path = f"{start}/labels/{end}" if middle else f"/{image}"
    return path[1:].rpartition(".")[0] + ".txt"


def _entry(listing: Listing, split: str, image: str) -> Entry:
    label = label_path(image)
    return Entry(split, image, label if label in listing.files else None)


def _orphans(listing: Listing, entries: list[Entry]) -> Iterator[Fault]:
    """Labels in the folders of labels whose image is not there."""
    used = {entry.label for entry in entries}
    if len(entries) < len(listing.images()):  # images that no split names have their labels all the same
        used |= {label_path(image) for image in listing.images()}
    of_images = {entry.image[: entry.image.rfind("/") + 1] for entry in entries}
    folders = {posixpath.dirname(label_path(f"{folder}x.jpg")) for folder in of_images}
    for path in listing.with_suffix(".txt"):
        if path not in used and posixpath.dirname(path) in folders and posixpath.basename(path).lower() not in _NOT_LABELS:
            yield Fault("label-orphaned", path, 0, "no matching image")


def _classes(names: object, count: object, described: str, faults: list[Fault]) -> dict[ClassKey, str]:
    """The classes that a model with `nc` outputs knows; those of `names` where `nc` is not there."""
    listed = dict(enumerate(names)) if isinstance(names, list) else names if isinstance(names, dict) else {}
    classes: dict[ClassKey, str] = {
        int(key): str(name)[:200] for key, name in listed.items() if str(key).isdigit() and isinstance(name, (str, int, float))
    }
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
        stated = repr(count)[:40] if isinstance(count, (str, int, float)) else f"a {type(count).__name__}"  # which may be endless
        faults.append(Fault("class-count", described, 0, f"nc is {stated}, not a number of classes"))
    elif isinstance(count, int):
        if classes and set(classes) != set(range(count)):
            faults.append(Fault("class-count", described, 0, f"nc is {count}, but names has {len(classes)}"))
        classes = classes or {number: str(number) for number in range(min(count, _MOST_CLASSES))}
        return {key: name for key, name in classes.items() if int(key) < count}
    return classes


def _without_description(listing: Listing) -> ImageSet:
    entries = [_entry(listing, split_named(path), path) for path in listing.images()]
    if not any(entry.label for entry in entries):
        raise UsageError(
            f"{listing.root} has no data.yaml and no labels beside its images", fix="name the data.yaml, or --format"
        )
    names = names_in(listing, "classes.txt")
    faults = list(_orphans(listing, entries))
    return ImageSet("yolo", listing.root, listing, entries, names, read_label, bool(names), True, None, faults)
