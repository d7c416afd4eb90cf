"""Data sets that Hugging Face's `save_to_disk` wrote: `data-*.arrow` with a `dataset_info.json`, one folder for each split."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.data.columns import Chunk, Part, TableSet, rows_at_once
from holdfast.data.formats.tables import columns_of_batch
from holdfast.data.listing import Listing, read_text, split_named

_ENDINGS = (".arrow", ".feather")
_LARGEST = 64 << 20


def recognise(listing: Listing, named: str | None) -> float | None:
    """How sure it is that these are Arrow files."""
    return 0.9 if listing.named_or_all(named, *_ENDINGS) else None


def read(listing: Listing, named: str | None) -> TableSet:
    """One part for each file. The numbers of a `ClassLabel` become their names."""
    files = [named] if named else listing.with_suffix(*_ENDINGS)
    parts = [Part(split_named(file), file, partial(_chunks, listing.root / file)) for file in files]
    data = TableSet("arrow", listing.root, parts)
    for info in (path for path in listing.files if path.rpartition("/")[2] == "dataset_info.json"):
        data.class_names |= _class_names(listing.root / info)
    return data


def _class_names(path: Path) -> dict[str, list[str]]:
    """The names of the classes of each column that is a `ClassLabel`."""
    try:
        features = json.loads(read_text(path, limit=_LARGEST))["features"]
        labels = {name: kind["names"] for name, kind in features.items() if isinstance(kind, dict) and "names" in kind}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return {str(name): [str(word)[:200] for word in names] for name, names in labels.items() if isinstance(names, list)}


def _chunks(path: Path) -> Iterator[Chunk]:
    import pyarrow as pa

    with pa.memory_map(str(path)) as file:
        for batch in _batches(file):
            batch.validate(full=True)  # Arrow trusts the offsets in a file, and a wrong one is a crash
            rows = rows_at_once(batch.nbytes / max(1, batch.num_rows))
            for start in range(0, batch.num_rows, rows):
                table = pa.Table.from_batches([batch.slice(start, rows)]).flatten().combine_chunks()
                yield columns_of_batch(table.to_batches()[0])


def _batches(file: Any) -> Iterator[Any]:
    """Both kinds of Arrow's files: `datasets` writes streams, Feather has an index at its end."""
    import pyarrow as pa

    if file.read(6) == b"ARROW1":
        file.seek(0)
        reader = pa.ipc.open_file(file)
        yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
        return
    file.seek(0)
    yield from pa.ipc.open_stream(file)
