"""Find out what format data is in, open it, and answer a question about it unless the answer is remembered."""

from __future__ import annotations

import posixpath
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from holdfast.data.cache import Cache, fingerprint_of_files, stamp_of
from holdfast.data.columns import TableSet
from holdfast.data.formats import (
    arrays,
    arrow,
    coco,
    image_folder,
    masks,
    root_trees,
    tables,
    text,
    time_series,
    torch_dataset,
    voc,
    webdataset,
    yolo,
)
from holdfast.data.formats.text import TextSet
from holdfast.data.listing import NOT_DECODED, Listing, listed, order_of, suffix
from holdfast.data.problem import Answer
from holdfast.data.remote import is_remote, local_copy
from holdfast.data.samples import FORMATS, ImageSet
from holdfast.errors import UsageError

_IMAGE_FORMATS: dict[str, Any] = {
    "yolo": yolo, "coco": coco, "voc": voc, "masks": masks, "image-folder": image_folder, "webdataset": webdataset,
}  # fmt: skip
_TABLE_FORMATS: dict[str, Any] = {"table": tables, "array": arrays, "arrow": arrow, "ts": time_series}
_ALL = {**_IMAGE_FORMATS, **_TABLE_FORMATS, "root": root_trees, "text": text}
_LEAST = 0.3
Data = ImageSet | TableSet | TextSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user asked for. `classes`: statistics of these only; `pixels`: statistics of decoded images, too."""

    format: str | None = None
    jobs: int = 0
    quick: bool = False
    pixels: bool = False
    label: str | None = None
    tree: str | None = None
    tokenizer: Path | None = None
    embedding_rows: int | None = None
    classes: frozenset[str] = frozenset()
    also: tuple[Path, ...] = ()
    cache: Path | None = None  # the folder of the caches; None: nothing is remembered

    def cache_of(self, listing: Listing, named: str | None, purpose: str) -> Cache:
        """What is remembered of single samples for this purpose: only these settings change it."""
        return Cache(self.cache, str(listing.root), named, purpose, self.format, self.quick, self.pixels, self.also)

    def fingerprint(self, listing: Listing) -> str:
        """A word for all files and all settings that an answer depends on."""
        settings = (self.label, self.tree, self.tokenizer, stamp_of(self.tokenizer), self.embedding_rows, sorted(self.classes))
        return fingerprint_of_files(listing.files, listing.outside, settings) if self.cache else ""


AnswerT = TypeVar("AnswerT", bound=Answer)


def answer(
    path: str | Path,
    settings: Settings,
    purpose: str,
    make: Callable[[Data, Cache], AnswerT],
    restore: Callable[[dict[str, Any]], AnswerT],
) -> AnswerT:
    """Open the data and make the answer; where no file changed since the last time, it is that of the cache."""
    started = time.perf_counter()
    if is_factory(str(path), settings):
        result = make(torch_dataset.read(str(path)), Cache(None))
    else:
        listing, named = list_data(path, settings)
        with settings.cache_of(listing, named, purpose) as cache:
            stamp = settings.fingerprint(listing)
            row = cache.report(stamp)
            if row is not None:
                result = restore({**row, "remembered": True})
            else:
                result = make(open_listed(listing, named, settings), cache)
                cache.keep_report(stamp, result.as_row())
    result.path, result.seconds = str(path), time.perf_counter() - started
    return result


def is_factory(path: str, settings: Settings) -> bool:
    """Whether a path names code that makes a data set; a format that does not exist is refused."""
    if settings.format is not None and settings.format not in FORMATS:
        raise UsageError(f"unknown format {settings.format}", fix=f"one of: {', '.join(FORMATS)}")
    return settings.format == "dataset" or (torch_dataset.is_factory(path) and not Path(path).exists())


def open_data(path: str | Path, settings: Settings) -> Data:
    """The data of a path, in the format that was named or fits best."""
    if is_factory(str(path), settings):
        return torch_dataset.read(str(path))
    return open_listed(*list_data(path, settings), settings)


def local_path(path: str | Path, settings: Settings) -> Path:
    """Where the data lies on this machine; what lies elsewhere (`s3://`, `hf://`) is copied first."""
    return local_copy(str(path), settings.cache) if is_remote(str(path)) else Path(path)


def list_data(path: str | Path, settings: Settings) -> tuple[Listing, str | None]:
    """The files of a data set, and the one among them that was named, if one was: a data.yaml or JSON file stands for its set.

    A COCO file in a folder `annotations` belongs to the folder above it, where the images are.
    """
    local = local_path(path, settings)
    if not local.exists():
        raise UsageError(f"{path} does not exist", fix="name a folder, a data.yaml, a JSON file, a table, a ROOT or text file")
    if local.is_dir():
        return listed(local, settings.also), None
    if local.suffix.lower() not in (".yaml", ".yml", ".json"):
        return listed(local, settings.also), local.name
    folder = local.resolve().parent
    if local.suffix.lower() == ".json" and folder.name.lower() == "annotations":
        return listed(folder.parent, settings.also), posixpath.join(folder.name, local.name)
    return listed(folder, settings.also), local.name


def recognised(listing: Listing, named: str | None) -> str:
    """The format that fits best."""
    sure: dict[str, float] = {}
    for name, module in _ALL.items():
        sure[name] = module.recognise(listing, named) or 0.0
        if sure[name] == 1.0:
            return name
    best = max(sure, key=lambda name: sure[name])
    if sure[best] < _LEAST and (left := not_decoded(listing)):
        raise UsageError(f"{listing.root} holds {left}, which most loaders cannot decode", fix="convert them to JPEG or PNG")
    if sure[best] < _LEAST:
        raise UsageError(f"{listing.root} is not in a known format", fix=f"name it with --format: {', '.join(FORMATS)}")
    return best


def not_decoded(listing: Listing) -> str:
    """How many images of formats that only special programs read, in words; empty where there are none."""
    counts = Counter(suffix(path) for path in listing.with_suffix(*NOT_DECODED))
    return ", ".join(f"{count:,} {ending} files" for ending, count in counts.most_common())


def open_listed(listing: Listing, named: str | None, settings: Settings) -> Data:
    """Listed files as data. Training samples come first, so that of two equal samples the later one is not theirs."""
    format = settings.format or recognised(listing, named)
    if format in _IMAGE_FORMATS:
        data: ImageSet = _IMAGE_FORMATS[format].read(listing, named)
        data.entries.sort(key=lambda entry: order_of(entry.split))
        if left := not_decoded(listing):
            data.notes.append(f"not checked, because most loaders cannot decode them: {left}")
        if not data.entries and not data.faults:
            raise UsageError(f"{listing.root} holds no image", fix="name the folder above the images, or another --format")
        return data
    if format == "text":
        return text.read(listing, named, settings.tokenizer, settings.embedding_rows)
    table: TableSet = (
        root_trees.read(listing, named, settings.tree) if format == "root" else _TABLE_FORMATS[format].read(listing, named)
    )
    if not table.parts and not table.faults:
        raise UsageError(f"{listing.root} holds nothing to read", fix="name a file, or another --format")
    return table
