"""Where the images of a COCO file are: it names them with or without their folder."""

from __future__ import annotations

import posixpath

from holdfast.data.formats.splits import split_named
from holdfast.data.listing import Listing


class ImagePaths:
    """The images of a folder, to be found by the `file_name` that a JSON file gives them."""

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
        found = self._by_name.get(posixpath.basename(name), [])
        if len(found) > 1:
            found = [path for path in found if split_named(path) == split and path.endswith(name)]
        return found[0] if len(found) == 1 else None
