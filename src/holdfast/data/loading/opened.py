"""From what the user named to a loader: a factory of theirs, or data that Holdfast reads by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.data.formats.detect import is_image_format, list_data, open_images, open_table, recognised
from holdfast.data.formats.torch_dataset import is_factory, made_by
from holdfast.data.loading.source import Source
from holdfast.errors import UsageError

TEXT_FIX = "give the loader of your training: holdfast validate package.module:factory --benchmark"


def opened(target: str, options: dict[str, Any]) -> Source:
    """The loader. `options`: format, tree, batch, also."""
    batch = options.get("batch")
    if options.get("format") == "dataset" or (is_factory(target) and not Path(target).exists()):
        return Source(made_by(target), batch)
    listing, named = list_data(Path(target), [Path(path) for path in options.get("also", ())])
    format = options.get("format") or recognised(listing, named)
    if is_image_format(format):
        from holdfast.data.loading.image_reading import Images

        return Source(Images(open_images(listing, named, format)), batch)
    if format == "text":
        raise UsageError("text is not loaded by samples here", fix=TEXT_FIX)
    from holdfast.data.loading.table_reading import rows_of

    return Source(rows_of(open_table(listing, named, format, options.get("tree")), batch), batch)
