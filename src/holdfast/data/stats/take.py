"""Take the statistics of data: recognise it, let all of it go by, and remember the answer."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.data.cache import Cache, fingerprint_of_files, stamp_of
from holdfast.data.formats import text, torch_dataset
from holdfast.data.formats.detect import is_image_format, list_data, open_images, open_table, recognised
from holdfast.data.formats.text import TextSet, ids, is_ids, lines
from holdfast.data.formats.torch_dataset import is_factory
from holdfast.data.listing import Listing, order_of, read_text
from holdfast.data.problem import Fault
from holdfast.data.samples import FORMATS
from holdfast.data.scan import Progress, ScanSettings
from holdfast.data.stats.figures import Bars, Figure, Values
from holdfast.data.stats.images import image_statistics
from holdfast.data.stats.report import Statistics, statistics_from
from holdfast.data.stats.tables import table_statistics
from holdfast.errors import UsageError

# Statistics of text: lengths of lines, how often each token or character comes, and what the tokenizer does not know.

_LISTED = 50
_LARGEST_ID = 1 << 22
_MOST = 100  # tokens whose share of the text is told


def text_statistics(path: str, data: TextSet, names: dict[int, str], progress: Progress | None) -> Statistics:
    """Read every line once."""
    counts = TextCounts(data, names)
    counts.read(progress)
    report = Statistics(path=path, format="text", unit=counts.unit, splits=counts.splits, notes=data.notes)
    report.add_faults(counts.faults)
    report.figures = list(counts.figures())
    return report


class TextCounts:
    """Reads the texts of a set; tokens where there is a tokenizer or ids, characters otherwise."""

    def __init__(self, data: TextSet, names: dict[int, str]) -> None:
        self._data, self._names = data, names
        self.unit = data.unit
        self._lengths = Values()
        self._often: dict[str, Counter[int]] = {}
        self._total: Counter[str] = Counter()
        self._lines: Counter[str] = Counter()
        self.faults: list[Fault] = []

    def read(self, progress: Progress | None) -> None:
        """Read everything; progress is in bytes."""
        total = sum(self._data.listing.files[file].size for _, file in self._data.files)
        done = 0
        for split, file in self._data.files:
            self._total[split] += 0
            try:
                for size in self._ids(split, file) if is_ids(file) else self._text(split, file):
                    done += size
                    if progress:
                        progress(min(done, total), total)
            except OSError as error:
                self.faults.append(Fault("table-unreadable", file, 0, error.strerror or str(error)))

    def _text(self, split: str, file: str) -> Iterator[int]:
        often = self._often.setdefault(split, Counter())
        for line in lines(self._data.root / file):
            if self._data.tokenizer:
                found = self._data.tokenizer.encode(line)
                often.update(found)
                length = len(found)
            else:
                often.update(map(ord, line))
                length = len(line.rstrip("\r\n"))
            self._total[split] += length if self._data.tokenizer else len(line)
            self._lines[split] += 1
            self._lengths.add(split, length)
            yield len(line.encode("utf-8", errors="replace"))

    def _ids(self, split: str, file: str) -> Iterator[int]:
        limit = self._data.embedding_rows or (self._data.tokenizer.size if self._data.tokenizer else None)
        often = self._often.setdefault(split, Counter())
        for some in ids(self._data.root / file, limit):
            often.update(_counted(some))
            self._total[split] += len(some)
            yield some.nbytes // (4 if limit is None or limit <= 1 << 16 else 2)

    @property
    def splits(self) -> dict[str, int]:
        """Tokens or characters of each split."""
        return {split: self._total[split] for split in sorted(self._total, key=order_of)}

    def figures(self) -> Iterator[Figure]:
        """Lengths, what is not known, and the most frequent."""
        empty = sum(some[0] for some in self._lengths.by_split.values())
        note = f"{sum(self._lines.values()):,} lines" + (f", {empty:,} of them empty" if empty else "")
        made = self._lengths.histogram("line-length", f"{self.unit} per line", "", note)
        yield from [made] if made else []
        if self._data.tokenizer and self._data.tokenizer.unknown is not None:
            yield self._unknown(self._data.tokenizer.unknown)
        if any(self._often.values()):
            yield self._frequent()

    def _unknown(self, unknown: int) -> Bars:
        splits = list(self.splits)
        missed = {split: self._often.get(split, Counter())[unknown] for split in splits}
        known = {split: self._total[split] - missed[split] for split in splits}
        share = sum(missed.values()) / max(1, sum(self._total.values()))
        return Bars(
            key="unknown", title="known to the tokenizer", unit="tokens", counts={"known": known, "unknown": missed},
            note=f"{share:.2%} unknown",
        )  # fmt: skip

    def _frequent(self) -> Bars:
        total: Counter[int] = sum(self._often.values(), Counter())
        counts = {self._name(one): {split: self._often.get(split, Counter())[one] for split in self.splits}
                  for one, _ in total.most_common(_LISTED)}  # fmt: skip
        share = sum(count for _, count in total.most_common(_MOST)) / max(1, sum(total.values()))
        size = self._data.tokenizer.size if self._data.tokenizer else None
        of = f" of {size:,} in the vocabulary" if size else ""
        note = f"{len(total):,}{of} occur" + (f"; the {_MOST} most frequent make {share:.0%}" if len(total) > _MOST else "")
        rest = total.most_common()[_LISTED:]
        return Bars(
            key="frequency", title=f"most frequent {self.unit}", unit="times", counts=counts, note=note,
            others=len(rest), of_others=sum(count for _, count in rest),
        )  # fmt: skip

    def _name(self, number: int) -> str:
        if self.unit == "characters":
            return _shown(chr(number))
        if self._data.tokenizer and number == self._data.tokenizer.unknown:
            return self._names.get(number, "(unknown)")
        return _shown(self._names[number]) if number in self._names else str(number)


def _shown(token: str) -> str:
    """A token as one can see it."""
    return token if token.isprintable() and token.strip() else repr(token)


def _counted(some: npt.NDArray[np.int64]) -> dict[int, int]:
    values, counts = np.unique(np.minimum(some, _LARGEST_ID), return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


# What the ids of a tokenizer stand for, read from its file: the reverse of its table.

_LARGEST = 256 << 20
_BLANKS = str.maketrans({"Ġ": "␣", "▁": "␣", "Ċ": "⏎"})  # how byte-level and sentence pieces write a blank and a new line


def token_names(path: Path | None) -> dict[int, str]:
    """Id to token; empty where the file does not tell."""
    if path is None:
        return {}
    try:
        text = read_text(path, limit=_LARGEST)
        content: Any = json.loads(text) if path.suffix.lower() == ".json" else None
    except (OSError, ValueError, RecursionError):
        return {}
    if content is None:
        return {number: line.rstrip("\r") or " " for number, line in enumerate(line for line in text.split("\n") if line)}
    if not isinstance(content, dict):
        return {}
    if "model" not in content:
        return _reversed(content)
    model = content["model"] if isinstance(content["model"], dict) else {}
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, list):  # unigram: pairs of a token and its weight
        vocabulary = {str(pair[0]): number for number, pair in enumerate(vocabulary) if isinstance(pair, list) and pair}
    names = _reversed(vocabulary) if isinstance(vocabulary, dict) else {}
    return {number: token.translate(_BLANKS) for number, token in names.items()}


def _reversed(table: dict[str, Any]) -> dict[int, str]:
    return {number: str(token) for token, number in table.items() if isinstance(number, int)}


_VERSION = 1  # raise it whenever figures or measurements change their meaning


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsSettings:
    """What the user asked for. `classes`: only these; `pixels`: decode images, too."""

    format: str | None = None
    jobs: int = 0
    pixels: bool = False
    label: str | None = None
    tree: str | None = None
    tokenizer: Path | None = None
    classes: frozenset[str] = frozenset()
    also: tuple[Path, ...] = ()
    cache: Path | None = None  # the folder of the caches; None: nothing is remembered


def take_statistics(path: str | Path, settings: StatsSettings, progress: Progress | None = None) -> Statistics:
    """The statistics of a data set. What did not change since the last time is not read again; a data set of code always is."""
    started = time.perf_counter()
    if settings.format is not None and settings.format not in FORMATS:
        raise UsageError(f"{settings.format} is no format", fix=f"one of: {', '.join(FORMATS)}")
    if settings.format == "dataset" or (is_factory(str(path)) and not Path(path).exists()):
        data = torch_dataset.read(str(path))
        found = table_statistics(str(path), data, label=settings.label, only=settings.classes, progress=progress)
    else:
        found = _of_files(Path(path), settings, progress)
    found.seconds = time.perf_counter() - started
    return found


def _of_files(path: Path, settings: StatsSettings, progress: Progress | None) -> Statistics:
    listing, named = list_data(path, settings.also)
    measured = ("stats", _VERSION, settings.format, settings.pixels, settings.also)
    asked = (settings.label, settings.tree, sorted(settings.classes), settings.tokenizer, stamp_of(settings.tokenizer))
    with Cache(settings.cache, str(listing.root), named, measured) as cache:
        stamp = fingerprint_of_files(listing.files, listing.outside, asked) if settings.cache else ""
        row = cache.report(stamp)
        if row is not None:
            return statistics_from({**row, "path": str(path), "remembered": True})
        found = _taken(path, listing, named, settings, cache, progress)
        cache.keep_report(stamp, found.as_row())
    return found


def _taken(
    path: Path, listing: Listing, named: str | None, settings: StatsSettings, cache: Cache, progress: Progress | None
) -> Statistics:
    format = settings.format or recognised(listing, named)
    if is_image_format(format):
        data = open_images(listing, named, format)
        processes = ScanSettings(jobs=settings.jobs).processes
        return image_statistics(
            str(path), data, cache, only=settings.classes, pixels=settings.pixels, processes=processes, progress=progress
        )
    if format == "text":
        if settings.classes:
            raise UsageError("text has no classes", fix="leave out --class")
        texts = text.read(listing, named, settings.tokenizer)
        beside = listing.root / texts.tokenizer_file if texts.tokenizer_file else None
        return text_statistics(str(path), texts, token_names(settings.tokenizer or beside), progress)
    table = open_table(listing, named, format, settings.tree)
    return table_statistics(str(path), table, label=settings.label, only=settings.classes, progress=progress)
