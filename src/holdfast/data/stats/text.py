"""Statistics of text: lengths of lines, how often each token or character comes, and what the tokenizer does not know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from holdfast.data.formats.splits import order_of
from holdfast.data.formats.text import TextSet, ids, is_ids, lines
from holdfast.data.problem import Fault
from holdfast.data.scan import Progress
from holdfast.data.stats.figures import Bars, Figure
from holdfast.data.stats.report import Statistics
from holdfast.data.stats.values import Values

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
