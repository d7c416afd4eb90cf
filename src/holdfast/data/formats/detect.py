"""Find out what format data is in, and open it."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from pathlib import Path

from holdfast.data.columns import TableSet
from holdfast.data.formats import arrays, coco, image_folder, masks, root_trees, tables, text, voc, yolo
from holdfast.data.listing import Listing, listed, order_of
from holdfast.data.samples import FORMATS, ImageSet
from holdfast.errors import UsageError

_IMAGE_FORMATS = {"yolo": yolo, "coco": coco, "voc": voc, "masks": masks, "image-folder": image_folder}
_TABLE_FORMATS = {"table": tables, "array": arrays}
_ALL = {**_IMAGE_FORMATS, **_TABLE_FORMATS, "root": root_trees, "text": text}
_LEAST = 0.3


def list_data(path: Path, also: Iterable[Path] = ()) -> tuple[Listing, str | None]:
    """The files of a data set, and the one among them that was named, if one was: a data.yaml or JSON file stands for its set.

    A COCO file in a folder `annotations` belongs to the folder above it, where the images are.
    """
    if not path.exists():
        raise UsageError(f"{path} does not exist", fix="name a folder, a data.yaml, a JSON file, a table, a ROOT or text file")
    if path.is_dir():
        return listed(path, also), None
    if path.suffix.lower() not in (".yaml", ".yml", ".json"):
        return listed(path, also), path.name
    folder = path.resolve().parent
    if path.suffix.lower() == ".json" and folder.name.lower() == "annotations":
        return listed(folder.parent, also), posixpath.join(folder.name, path.name)
    return listed(folder, also), path.name


def is_image_format(format: str) -> bool:
    """Whether a format is one of images; the others are tables, arrays, trees and text."""
    return format in _IMAGE_FORMATS


def recognised(listing: Listing, named: str | None) -> str:
    """The format that fits best."""
    sure: dict[str, float] = {}
    for name, module in _ALL.items():
        sure[name] = module.recognise(listing, named) or 0.0
        if sure[name] == 1.0:
            return name
    best = max(sure, key=lambda name: sure[name])
    if sure[best] < _LEAST:
        raise UsageError(f"{listing.root} is in no format that is known", fix=f"name it with --format: {', '.join(FORMATS)}")
    return best


def open_images(listing: Listing, named: str | None, format: str) -> ImageSet:
    """Image data in a format; training samples first, so that of two equal samples the later one is not theirs."""
    data: ImageSet = _IMAGE_FORMATS[format].read(listing, named)
    data.entries.sort(key=lambda entry: order_of(entry.split))
    return data


def open_table(listing: Listing, named: str | None, format: str, tree: str | None) -> TableSet:
    """Tables, arrays and trees."""
    if format == "root":
        return root_trees.read(listing, named, tree)
    data: TableSet = _TABLE_FORMATS[format].read(listing, named)
    return data
