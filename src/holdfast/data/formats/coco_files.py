"""Which JSON files of a folder hold the boxes of a COCO set.

The official `annotations` folder also holds captions, keypoints and segments of the same images, and `--fix` writes a cleaned
file beside the original: only one file of a split is read for each image.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Set
from pathlib import Path
from typing import Any

_HEAD = 1 << 16


def looks_like_one(path: Path) -> bool:
    """Whether a JSON file names categories, and images or annotations, near its beginning or its end.

    One that is cut short may end before its categories: it is taken all the same, so that the damage is told.
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


def in_order(files: Iterable[str]) -> list[str]:
    """The files in the order in which they are preferred: those named `instances` first, cleaned ones last, then by name."""

    def preference(file: str) -> tuple[bool, bool, str]:
        name = posixpath.basename(file).lower()
        return name.endswith(".cleaned.json"), not name.startswith("instances"), file

    return sorted(files, key=preference)


def has_boxes(content: dict[str, Any]) -> bool:
    """Whether this is a file for detection: it has categories, and some annotation (if there is any) has a category or a box."""
    rows = content.get("annotations")
    objects = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return "categories" in content and (not objects or any("category_id" in row or "bbox" in row for row in objects))


def same_images(one: Set[str], other: Set[str]) -> bool:
    """Whether two files are about the same images: the smaller one shares more than half of its own with the other."""
    return 2 * len(one & other) > min(len(one), len(other))
