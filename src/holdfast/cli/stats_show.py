"""How the answer of `holdfast stats` looks in a terminal: bars, histograms in a line, maps of shades."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from holdfast.cli.checkpoints.layout import folded, page, shortened
from holdfast.cli.show import duration
from holdfast.cli.stats_maps import heat_map, pairs
from holdfast.data.stats.figures import Bars, Figure, Grid, Histogram
from holdfast.probe.words import plain
from holdfast.units import number

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.data.stats.figures import Statistics

_ROWS = 12  # names of a list of bars
_LINES = 40  # histograms one under the other
_BAR = 10  # columns of the longest one, at least
_WIDE = 92  # columns from which on there is room for mean and deviation
_SPARK, _NUMBER, _SPREAD = 32, 9, 18
_UP = " ▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉"
_NAMED = 5
_FOLDED = 4  # columns of one value, which then share a line


def show(statistics: Statistics) -> None:
    """What the data is, its figures with the most important first, what could not be read, and the total on stderr."""
    console = page()
    splits = " · ".join(f"{split} {count:,}" for split, count in statistics.splits.items())
    only = f", only {', '.join(statistics.classes)}" if statistics.classes else ""
    more = f" ({splits})" if len(statistics.splits) > 1 else ""
    _words(console, f"{statistics.path}: {statistics.format}, {statistics.samples:,} {statistics.unit}{more}{only}", "bold")
    for group in _grouped(statistics.figures):
        console.print()
        for line in _lines(group, console.width, coloured=console.color_system in ("256", "truecolor")):
            console.print(line, soft_wrap=True)
    if statistics.unreadable_count:
        _unreadable(console, statistics)
    if statistics.notes:
        console.print()
    for note in statistics.notes:
        _words(console, f"note: {note}", "dim")
    sys.stdout.flush()
    how = "nothing changed since the last run" if statistics.remembered else f"in {duration(statistics.seconds)}"
    print(f"{statistics.samples:,} {statistics.unit}, {how}", file=sys.stderr)


def _words(console: Console, text: str, style: str) -> None:
    for line in folded(text, console.width, ""):
        console.print(Text(line, style), soft_wrap=True)


def _unreadable(console: Console, statistics: Statistics) -> None:
    console.print()
    word = ("sample" if statistics.format == "dataset" else "file") + ("s" if statistics.unreadable_count != 1 else "")
    console.print(Text(f"could not be read: {statistics.unreadable_count:,} {word}", "bold red"), soft_wrap=True)
    for file, why in list(statistics.unreadable.items())[:_NAMED]:
        for line in folded(f"{file}: {why}".rstrip(": "), console.width, "  ", hang="  "):
            console.print(Text(line), soft_wrap=True)
    if statistics.unreadable_count > _NAMED:
        console.print(Text(f"  and {statistics.unreadable_count - _NAMED:,} more; --json names them", "dim"), soft_wrap=True)


def _grouped(figures: list[Figure]) -> Iterator[list[Figure]]:
    """Histograms and short lists that follow each other stand in one block."""
    block: list[Figure] = []
    for figure in figures:
        if _is_a_line(figure):
            block.append(figure)
            continue
        if block:
            yield block
            block = []
        yield [figure]
    if block:
        yield block


def _is_a_line(figure: Figure) -> bool:
    if isinstance(figure, Bars):
        return len(figure.counts) == 1 or figure.key.startswith("column:")
    return isinstance(figure, Histogram)


def _lines(group: list[Figure], width: int, *, coloured: bool) -> Iterator[Text]:
    first = group[0]
    if _is_a_line(first):
        yield from _block(group, width)
    elif isinstance(first, Bars):
        yield from _bars(first, width)
    elif isinstance(first, Grid):
        unit = plain(first.unit + (f"; {first.note}" if first.note else ""))
        yield Text(plain(first.title), "bold").append(f"  {unit}", "dim")
        yield from heat_map(first, coloured=coloured) if first.shape == "map" else pairs(first, width)


def _bars(figure: Bars, width: int) -> Iterator[Text]:
    """A name, a bar, the count, its share, and the counts of each split."""
    totals = figure.totals
    some = list(totals)[:_ROWS]
    splits = list(next(iter(figure.counts.values()), {}))
    columns = {split: {name: figure.counts[name].get(split, 0) for name in some} for split in splits} if len(splits) > 1 else {}
    named = max(12, min(28, max(map(cell_len, some), default=0)))
    if named + _BAR + 20 + 9 * (len(columns) + len(figure.columns)) > width:
        columns = {}
    columns.update(figure.columns)
    bar = max(_BAR, width - named - 2 - 11 - 8 - 9 * len(columns))
    head = Text(shortened(figure.title, named + bar).ljust(named + bar + 1), "bold")
    yield head.append(f"{figure.unit:>11}{'share':>8}" + "".join(f"{shortened(column, 8):>9}" for column in columns), "dim")
    most, total = max(totals.values(), default=0), max(1, figure.whole)
    for name in some:
        line = Text(set_cell_size(shortened(name, named), named + 1)).append(_bar(totals[name] / max(most, 1), bar), "cyan")
        line.append(f"{totals[name]:>11,}{_share(totals[name] / total):>8}")
        yield line.append("".join(f"{_short(column.get(name, 0)):>9}" for column in columns.values()), "dim")
    left = len(totals) + figure.others - len(some)
    if left:
        rest = figure.whole - sum(totals[name] for name in some)
        have = "; --json and --html have more" if len(totals) > len(some) else ""
        yield Text(f"and {left:,} more with {_share(rest / total)}{have}", "dim")
    if figure.note:
        yield Text(plain(figure.note), "dim")


def _bar(share: float, width: int) -> str:
    eighths = round(share * width * 8) or (1 if share > 0 else 0)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + _EIGHTHS[rest] * (rest > 0)).ljust(width)


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"


def _short(count: int) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M")):
        if count >= size:
            return f"{count / size:.3g} {letter}"
    return f"{count:,}"


def _block(group: list[Figure], width: int) -> Iterator[Text]:
    """One line for each histogram: its shape, lowest, middle and highest value, mean and deviation."""
    spread = _SPREAD if width >= _WIDE else 0
    title = max(12, width - _SPARK - 1 - 3 * _NUMBER - spread)
    if any(isinstance(figure, Histogram) for figure in group):
        header = "".join(f"{word:>{_NUMBER}}" for word in ("low", "median", "high"))
        yield Text(" " * (title + _SPARK + 1) + header + ("mean ± deviation".rjust(spread) if spread else ""), "dim")
    constant = [figure for figure in group if isinstance(figure, Histogram) and _is_constant(figure)]
    group = [figure for figure in group if figure not in constant or len(constant) < _FOLDED]
    for figure in group[:_LINES]:
        if isinstance(figure, Bars):
            yield _words_of(figure, title, width)
        elif isinstance(figure, Histogram):
            yield from _histogram(figure, title, spread)
    if len(group) > _LINES:
        yield Text(f"and {len(group) - _LINES:,} more; --json and --html have them", "dim")
    if len(constant) >= _FOLDED:
        listed = ", ".join(f"{figure.title} {number(figure.low)}" for figure in constant)
        yield Text(_cut(f"{len(constant)} with one value only: {listed}", width), "dim")


def _is_constant(figure: Histogram) -> bool:
    return figure.low is not None and figure.low == figure.high and figure.key.startswith("column:") and not figure.nan


def _histogram(figure: Histogram, title: int, spread: int) -> Iterator[Text]:
    line = Text(set_cell_size(shortened(figure.title, title - 1), title))
    line.append(_shape(figure.totals).ljust(_SPARK + 1), "cyan")
    line.append("".join(f"{number(value):>{_NUMBER}}" for value in (figure.low, figure.median, figure.high)))
    if figure.mean is not None and spread:
        line.append(f"{number(figure.mean)} ± {number(figure.deviation)}".rjust(spread), "dim")
    yield line
    bad = [f"{count:,} {word}" for count, word in ((figure.nan, "NaN"), (figure.inf, "Inf")) if count]
    if bad:
        yield Text(" " * title + ", ".join(bad), "bold red")
    if figure.note:
        yield Text(f"  {shortened(figure.note, title + _SPARK + 3 * _NUMBER + spread - 4)}", "dim")


def _shape(counts: list[int]) -> str:
    """A bar for each bin; nothing where nothing is."""
    most = max(counts, default=0)
    return "".join(_UP[math.ceil(count / most * (len(_UP) - 1))] if most else " " for count in counts)


def _words_of(figure: Bars, title: int, width: int) -> Text:
    """A list in a line: the names with their shares."""
    totals, total = figure.totals, max(1, figure.whole)
    if len(totals) == 1:
        name, count = next(iter(totals.items()))
        text = f"{name}, {count:,} {figure.unit}"
    else:
        shown = ", ".join(f"{name} {_share(count / total)}" for name, count in totals.items())
        text = f"{figure.note}: {shown}" if figure.note else shown
    room = width - title - 1
    return Text(set_cell_size(shortened(figure.title, title - 1), title)).append(_cut(text, room))


def _cut(text: str, width: int) -> str:
    text = plain(text)
    return text if len(text) <= width else text[: width - 1] + "…"
