"""YOLO: a data.yaml, images, and for each image a text file with a line `class x y width height` or a polygon for each object.

Where data.yaml names a `kpt_shape`, the numbers behind the box are keypoints.
Without data.yaml, folders `images` and `labels` side by side are taken for it; the classes are then those that are met.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.data.formats.splits import split_named
from holdfast.data.formats.yolo_labels import read_label
from holdfast.data.formats.yolo_pose import read_pose, shape_of
from holdfast.data.listing import IMAGES, Listing, read_text, suffix
from holdfast.data.problem import Fault
from holdfast.data.samples import ClassKey, Entry, ImageSet
from holdfast.errors import UsageError

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
    """The YAML file that describes the set: it must name or count classes, and name at least one split."""
    found = [named] if named else [path for path in listing.files if "/" not in path and suffix(path) in (".yaml", ".yml")]
    for path in sorted(found, key=lambda one: one != "data.yaml"):
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
        for one in wanted if isinstance(wanted, list) else [wanted]:
            if isinstance(one, str) and one:
                name = "val" if split == "valid" else split
                entries += [_entry(listing, name, image) for image in _images(listing, base, one, described, faults)]
    faults += _orphans(listing, entries)
    classes = _counted(_classes(settings.get("names")), settings.get("nc"), described, faults)
    shape = shape_of(settings.get("kpt_shape"))
    reader = partial(read_pose, shape) if shape else read_label
    return ImageSet("yolo", listing.root, listing, entries, classes, reader, bool(classes), True, described, faults)


def _images(listing: Listing, base: str, where: str, described: str, faults: list[Fault]) -> Iterable[str]:
    """The images of a split: those of a folder, or those that a text file lists."""
    inside = _inside(listing, base, where)
    if inside is None:
        kind = "path-outside" if listing.leads_out(where, relative_to=base) else "split-missing"
        faults.append(Fault(kind, described, 0, f"{where!r} is not {'inside the folder' if kind == 'path-outside' else 'there'}"))
        return []
    if suffix(inside) != ".txt":
        return listing.images(inside)
    return list(_from_list(listing, inside, faults))


def _inside(listing: Listing, base: str, where: str) -> str | None:
    """The folder or list that is meant. One export writes `../train/images` for `train/images`: that is understood."""
    if where.startswith("/"):
        found = listing.find(where)
        folder = Path(where).resolve()
        for parent, name in ((listing.root, ""), *((one, one.as_posix()) for one in listing.allowed)):
            if found is None and (folder == parent or parent in folder.parents):
                found = posixpath.join(name, folder.relative_to(parent).as_posix())
        return found
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
        found = listing.find(name, relative_to=posixpath.dirname(path)) or listing.find(name)
        if found is not None and suffix(found) in IMAGES:
            yield found
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
            yield Fault("label-orphaned", path, 0, "no image belongs to it")


def _classes(names: object) -> dict[ClassKey, str]:
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, dict):
        return {}
    return {
        int(key): str(name)[:200] for key, name in names.items() if str(key).isdigit() and isinstance(name, (str, int, float))
    }


def _counted(names: dict[ClassKey, str], count: object, described: str, faults: list[Fault]) -> dict[ClassKey, str]:
    """The classes that a model with `nc` outputs knows; those of `names` where `nc` is not there."""
    if count is None:
        return names
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        faults.append(Fault("class-count", described, 0, f"nc is {str(count)[:40]!r}, which is no number of classes"))
        return names
    if names and set(names) != set(range(count)):
        faults.append(Fault("class-count", described, 0, f"nc is {count}, but names has {len(names)}"))
    names = names or {number: str(number) for number in range(min(count, _MOST_CLASSES))}
    return {key: name for key, name in names.items() if isinstance(key, int) and key < count}


def _without_description(listing: Listing) -> ImageSet:
    entries = [_entry(listing, split_named(path), path) for path in listing.images()]
    if not any(entry.label for entry in entries):
        raise UsageError(
            f"{listing.root} has no data.yaml and no labels beside its images", fix="name the data.yaml, or --format"
        )
    names: dict[ClassKey, str] = {}
    if "classes.txt" in listing.files:
        lines = read_text(listing.root / "classes.txt", limit=1 << 20).splitlines()
        names = {number: line.strip() for number, line in enumerate(lines) if line.strip()}
    faults = list(_orphans(listing, entries))
    return ImageSet("yolo", listing.root, listing, entries, names, read_label, bool(names), True, None, faults)
