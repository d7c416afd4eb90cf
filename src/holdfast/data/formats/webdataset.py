"""WebDataset: tar files (shards) in which the files of a sample have one name: `000123.jpg`, `000123.cls`, `000123.json`.

Nothing is unpacked: the listing shows the members of a shard as files below it, and they are read in place.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from holdfast.data.listing import IMAGES, Listing, read_bytes, split_named, suffix, tar_members
from holdfast.data.problem import Fault
from holdfast.data.samples import LARGEST_LABEL, ClassKey, Entry, ImageSet, Label

_LABELS = (".cls", ".json", ".txt")


def recognise(listing: Listing, named: str | None) -> float | None:
    """How sure it is that these are shards with images."""
    shards = listing.named_or_all(named, ".tar")
    for shard in shards:
        with contextlib.suppress(OSError, ValueError):  # a damaged one is reported when it is read
            return 0.97 if any(suffix(name) in IMAGES for name in tar_members(str(listing.root / shard))) else None
    return 0.3 if shards else None


def read(listing: Listing, named: str | None) -> ImageSet:
    """List the samples of all shards. The files of a sample have the same name up to its first dot."""
    entries: list[Entry] = []
    faults: list[Fault] = []
    for shard in listing.named_or_all(named, ".tar"):
        samples: dict[str, dict[str, str]] = {}
        try:
            members = tar_members(str(listing.root / shard))
        except (OSError, ValueError) as error:
            faults.append(Fault("label-unreadable", shard, 0, str(error)[:200]))
            continue
        for name in members:
            key, _, kind = name.rpartition("/")[2].partition(".")
            own = samples.setdefault(f"{name.rpartition('/')[0]}/{key}", {})
            own[f".{kind.lower()}"] = f"{shard}/{name}"
            listing.files[f"{shard}/{name}"] = listing.files[shard]._replace(size=members[name][1])
        entries += [entry for files in samples.values() if (entry := _entry(listing, shard, files, faults))]
    classes: dict[ClassKey, str] = {entry.class_id: str(entry.class_id) for entry in entries if entry.class_id is not None}
    return ImageSet("webdataset", listing.root, listing, entries, classes, read_label, False, False, None, faults)


def _entry(listing: Listing, shard: str, files: dict[str, str], faults: list[Fault]) -> Entry | None:
    image = next((path for kind, path in files.items() if suffix(kind) in IMAGES), None)
    label = next((files[kind] for kind in _LABELS if kind in files), None)
    if image is None:
        if label is not None:
            faults.append(Fault("label-orphaned", label, 0, "no matching image"))
        return None
    return Entry(split_named(shard), image, label, class_id=_class(listing.root, files.get(".cls"), faults))


def _class(root: Path, file: str | None, faults: list[Fault]) -> ClassKey | None:
    """What stands in a `.cls`: a number, or a word."""
    if file is None:
        return None
    try:
        word = read_bytes(root / file, limit=200).decode().strip()
    except (OSError, ValueError) as error:
        faults.append(Fault("label-unreadable", file, 0, str(error)[:200]))
        return None
    return int(word) if word.isdecimal() else word or None


def read_label(root: Path, entry: Entry) -> Label:
    """A JSON label must be JSON; what it means differs from set to set, so no more is asked of it."""
    if entry.label is None or suffix(entry.label) != ".json":
        return Label([])
    try:
        json.loads(read_bytes(root / entry.label, limit=LARGEST_LABEL))
    except (OSError, ValueError, RecursionError) as error:
        return Label([], faults=(Fault("label-unreadable", entry.label, 0, str(error)[:200]),))
    return Label([])
