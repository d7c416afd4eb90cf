"""Statistics of text: lengths of lines, how often each token or character comes, and what the tokenizer does not know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from holdfast.data.formats.text import TextSet
from holdfast.data.scan import Progress
from holdfast.data.stats.figures import Bars, Figure, Values
from holdfast.data.stats.report import Statistics
from holdfast.data.text_checks import TextCounts

_LISTED = 50
_MOST = 100  # tokens whose share of the text is told


def text_statistics(data: TextSet, progress: Progress | None) -> Statistics:
    """Read every line once."""
    counts = TextCounts(data, progress, frequencies=True)
    report = Statistics(format="text", unit=data.unit, splits=counts.splits, notes=data.notes)
    report.add_faults(counts.faults)
    report.figures = list(_figures(data, counts))
    return report


def _figures(data: TextSet, counts: TextCounts) -> Iterator[Figure]:
    """Lengths, what is not known, and the most frequent."""
    lengths = Values()
    for split, some in counts.lengths.items():
        for length, times in some.items():
            lengths.add(split, length, times)
    lines, empty = lengths.number, sum(some[0] for some in counts.lengths.values())
    note = f"{lines:,} lines" + (f", {empty:,} of them empty" if empty else "")
    histogram = lengths.histogram("line-length", f"{data.unit} per line", "", note)
    yield from [histogram] if histogram else []
    if data.tokenizer and data.tokenizer.unknown is not None:
        unknown = {split: counts.often[split][data.tokenizer.unknown] for split in counts.splits}
        known = {split: total - unknown[split] for split, total in counts.splits.items()}
        share = sum(unknown.values()) / max(1, sum(counts.splits.values()))
        yield Bars(
            key="unknown", title="known to the tokenizer", unit="tokens", counts={"known": known, "unknown": unknown},
            note=f"{share:.2%} unknown",
        )  # fmt: skip
    if any(counts.often.values()):
        yield _frequent(data, counts)


def _frequent(data: TextSet, counts: TextCounts) -> Bars:
    total: Counter[int] = sum(counts.often.values(), Counter())
    listed = {_name(data, one): {split: counts.often[split][one] for split in counts.splits}
              for one, _ in total.most_common(_LISTED)}  # fmt: skip
    share = sum(count for _, count in total.most_common(_MOST)) / max(1, sum(total.values()))
    of = f" of {data.tokenizer.size:,} in the vocabulary" if data.tokenizer else ""
    note = f"{len(total):,}{of} occur" + (f"; the {_MOST} most frequent make {share:.0%}" if len(total) > _MOST else "")
    rest = total.most_common()[_LISTED:]
    return Bars(
        key="frequency", title=f"most frequent {data.unit}", unit="times", counts=listed, note=note,
        others=len(rest), of_others=sum(count for _, count in rest),
    )  # fmt: skip


def _name(data: TextSet, number: int) -> str:
    """A token or character as one can see it."""
    names = data.tokenizer.names if data.tokenizer else {}
    if data.tokenizer and number == data.tokenizer.unknown:
        return names.get(number, "(unknown)")
    if number not in names and data.unit == "tokens":
        return str(number)
    token = chr(number) if data.unit == "characters" else names[number]
    return token if token.isprintable() and token.strip() else repr(token)
