"""The statistics as one HTML file that needs nothing else."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence

from holdfast.data.stats.figures import Bars, Figure, Grid, Histogram
from holdfast.data.stats.report import Statistics

# Figures as SVG inside a page: drawn in the page's own colours, so that they are legible on light and dark paper.

MOST_NAMES = 60  # of a list of bars
_WIDE, _ROW, _LEFT, _RIGHT = 880, 22, 190, 130
_PLOT_WIDE, _PLOT_HIGH, _AXIS = 410, 150, 40
_MAP = 360
_NUMBERS = 12  # classes up to which a table of pairs shows its numbers
_COLOURS = 5


def escaped(words: object) -> str:
    """Words that mean nothing to a browser."""
    return html.escape(str(words).encode("utf-8", errors="replace").decode(), quote=True)


def number(value: float | None) -> str:
    """A few digits that matter."""
    if value is None or not math.isfinite(value):
        return "–" if value is None else str(value)
    if (value == round(value) and abs(value) < 1e6) or 1e3 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    digits, exponent, power = f"{value:.3g}".partition("e")
    return f"{digits}e{int(power)}" if exponent else digits


def _drawing(width: int, height: int, parts: Iterator[str]) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img" style="max-width:{width}px">{"".join(parts)}</svg>'


def _label(x: float, y: float, words: object, *, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escaped(words)}</text>'


def bars(figure: Bars, splits: Sequence[str]) -> str:
    """A bar for each name, its parts coloured by split."""
    some = list(figure.counts)[:MOST_NAMES]
    return _drawing(_WIDE, _ROW * max(1, len(some)) + 4, _bar_parts(figure, some, splits))


def _bar_parts(figure: Bars, some: list[str], splits: Sequence[str]) -> Iterator[str]:
    totals, whole = figure.totals, max(1, figure.whole)
    scale = (_WIDE - _LEFT - _RIGHT - 90 * len(figure.columns)) / max([1, *totals.values()])
    for place, name in enumerate(some):
        y = place * _ROW + 15.0
        yield _label(_LEFT - 8, y, _cut(name, 26), anchor="end")
        x = float(_LEFT)
        for split, count in figure.counts[name].items():
            wide = count * scale
            said = f"<title>{escaped(name)}, {escaped(split)}: {count:,}</title>"
            yield f'<rect class="{_colour(split, splits)}" x="{x:.1f}" y="{y - 12}" width="{wide:.1f}" height="16">{said}</rect>'
            x += wide
        more = "".join(f" · {title} {column.get(name, 0):,}" for title, column in figure.columns.items())
        yield _label(x + 6, y, f"{totals[name]:,} · {100 * totals[name] / whole:.1f} %{more}", more=' class="soft"')


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"


def _colour(split: str, splits: Sequence[str]) -> str:
    return f"c{splits.index(split) % _COLOURS if split in splits else 0}"


def histogram(figure: Histogram, splits: Sequence[str]) -> str:
    """Filled for one split; for several a line each, as shares of their own split, so that small ones can be compared."""
    return _drawing(_PLOT_WIDE, _PLOT_HIGH + 20, _histogram_parts(figure, splits))


def _histogram_parts(figure: Histogram, splits: Sequence[str]) -> Iterator[str]:
    shares = {split: [count / max(1, sum(some)) for count in some] for split, some in figure.counts.items()}
    most = max((share for some in shares.values() for share in some), default=0.0) or 1.0
    bins = max(1, len(figure.edges) - 1)
    step = (_PLOT_WIDE - _AXIS - 8) / bins
    for part in (0.0, 0.5, 1.0):
        y = 8 + (1 - part) * (_PLOT_HIGH - 8)
        yield f'<line class="rule" x1="{_AXIS}" x2="{_PLOT_WIDE - 8}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _label(_AXIS - 5, y + 4, f"{100 * most * part:.2g} %", anchor="end", more=' class="soft"')
    for split, some in shares.items():
        kind = "area" if len(shares) == 1 else "line"
        said = f"<title>{escaped(split)}</title>"
        yield f'<path class="{kind} {_colour(split, splits)}" d="{_steps(some, most, step)}">{said}</path>'
    for place, words, anchor in _ticks(figure.edges):
        yield _label(_AXIS + place * step, _PLOT_HIGH + 15, words, anchor=anchor, more=' class="soft"')


def _ticks(edges: list[float]) -> Iterator[tuple[float, str, str]]:
    """Where the axis is marked, in bins; whole numbers stand under the middle of their bins."""
    bins = len(edges) - 1
    whole = all(edge % 1 == 0.5 for edge in edges)
    if whole and bins and edges[1] - edges[0] == 1:
        for place in range(0, bins, max(1, bins // 8)):
            yield place + 0.5, number(edges[place] + 0.5), "middle"
        return
    for place in sorted({0, bins // 4, bins // 2, 3 * bins // 4, bins}) if bins >= 8 else (0, bins):
        yield place, number(edges[place] + 0.5 * whole), "start" if place == 0 else "end" if place == bins else "middle"


def _steps(shares: list[float], most: float, step: float) -> str:
    points = [f"M{_AXIS} {_PLOT_HIGH}"]
    for place, share in enumerate(shares):
        y = 8 + (1 - share / most) * (_PLOT_HIGH - 8)
        points.append(f"L{_AXIS + place * step:.1f} {y:.1f}H{_AXIS + (place + 1) * step:.1f}")
    return "".join(points) + f"V{_PLOT_HIGH}"


def heat_map(figure: Grid) -> str:
    """The image from above; strong where there is most."""
    return _drawing(_MAP + 2, _MAP + 2, _map_parts(figure))


def _map_parts(figure: Grid) -> Iterator[str]:
    most = max((value for row in figure.values for value in row), default=0.0) or 1.0
    side = _MAP / max(1, len(figure.values))
    yield f'<rect class="frame" x="0.5" y="0.5" width="{_MAP + 1}" height="{_MAP + 1}"/>'
    for down, row in enumerate(figure.values):
        for across, value in enumerate(row):
            if value:
                place = f'x="{1 + across * side:.2f}" y="{1 + down * side:.2f}" width="{side:.2f}" height="{side:.2f}"'
                yield f'<rect class="c0" {place} fill-opacity="{value / most:.2f}"/>'


def pairs(figure: Grid) -> str:
    """Which names come together: each row as shares of what its name has alone."""
    count = max(1, len(figure.names))
    cell = max(14, min(64, 640 // count))
    longest = min(14, max(map(len, figure.names), default=0))
    top, left = 14 + 5 * longest, 16 + 7 * min(26, max(map(len, figure.names), default=0))
    return _drawing(left + cell * count + 60, top + cell * count + 2, _pair_parts(figure, cell, left, top))


def _pair_parts(figure: Grid, cell: int, left: int, top: int) -> Iterator[str]:
    for place, name in enumerate(figure.names):
        yield _label(left - 8, top + place * cell + cell / 2 + 4, _cut(name, 26), anchor="end")
        x = left + place * cell + cell / 2 + 4.0
        yield _label(x, top - 6, _cut(name, 14), more=f' transform="rotate(-40 {x:.1f} {top - 6})"')
        own = figure.values[place][place] or 1
        for other, value in enumerate(figure.values[place]):
            x, y = left + other * cell, top + place * cell
            said = f"<title>{escaped(name)} and {escaped(figure.names[other])}: {value:,.0f}</title>"
            kind = "own" if other == place else "c0"
            opacity = f' fill-opacity="{min(1.0, value / own) * 0.85:.2f}"' if other != place else ""
            side = f'width="{cell - 1}" height="{cell - 1}"'
            yield f'<rect class="{kind}" x="{x + 0.5}" y="{y + 0.5}" {side}{opacity}>{said}</rect>'
            if len(figure.names) <= _NUMBERS:
                yield _label(x + cell / 2, y + cell / 2 + 4, number(value), anchor="middle")


_MOST = 1000  # figures
_LISTED = 200
_SMALL = 6  # classes whose pairs fit into half of the page
_STYLE = """
:root { color-scheme: light dark; --ink: #1a202c; --soft: #667085; --line: #e2e8f0; --paper: #fff; --own: #edf2f7;
  --c0: #2b6cb0; --c1: #d97706; --c2: #2f855a; --c3: #9f4fc0; --c4: #c53030; }
@media (prefers-color-scheme: dark) { :root { --ink: #e2e8f0; --soft: #a0aec0; --line: #2d3748; --paper: #171c26; --own: #2d3748;
  --c0: #63a4e8; --c1: #f0a53c; --c2: #5bc58a; --c3: #c792e8; --c4: #f07070; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 940px; margin: 2rem auto; padding: 0 1rem; color: var(--ink);
  background: var(--paper); }
h1 { font-size: 1.3rem; margin-bottom: .2rem; } h2 { font-size: 1rem; margin: 0; } p { margin: .2rem 0; }
.soft { color: var(--soft); } main { display: flex; flex-wrap: wrap; gap: 1.8rem 2rem; margin-top: 1.6rem; }
section { flex: 1 1 410px; max-width: 440px; min-width: 0; } section.wide { flex-basis: 100%; max-width: none; }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif; margin: .4rem 0; }
svg text { fill: var(--ink); }
svg text.soft { fill: var(--soft); font-size: 11px; } .rule { stroke: var(--line); } .frame { fill: none; stroke: var(--line); }
.c0 { fill: var(--c0); color: var(--c0); } .c1 { fill: var(--c1); color: var(--c1); } .c2 { fill: var(--c2); color: var(--c2); }
.c3 { fill: var(--c3); color: var(--c3); } .c4 { fill: var(--c4); color: var(--c4); } .own { fill: var(--own); }
.line { fill: none; stroke: currentColor; stroke-width: 1.6; } .area { fill-opacity: .75; }
.small { font-size: .83rem; } .bad { color: var(--c4); font-weight: 600; } li { font: 13px/1.45 ui-monospace, monospace;
  overflow-wrap: anywhere; } .key { margin-right: 1.2rem; }
"""


def page(found: Statistics) -> str:
    """The whole file."""
    title = f"{found.path}: {found.format}"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escaped(title)}</title>'
    splits = list(found.splits)
    drawn = "".join(_section(figure, splits) for figure in found.figures[:_MOST])
    left = len(found.figures) - _MOST
    more = f"<p class=soft>and {left:,} figures more; --json has them</p>" if left > 0 else ""
    notes = "".join(f"<p class=soft>{escaped(note)}</p>" for note in found.notes)
    body = f"<h1>Holdfast: {escaped(title)}</h1>{_summary(found)}{_unreadable(found)}<main>{drawn}</main>{more}{notes}"
    return f"<!doctype html><html lang=en><head>{head}<style>{_STYLE}</style></head><body>{body}</body></html>\n"


def _summary(found: Statistics) -> str:
    only = f"; only {escaped(', '.join(found.classes))}" if found.classes else ""
    keys = "".join(
        f'<span class="key"><span class="c{place % 5}">■</span> {escaped(split)} {count:,}</span>'
        for place, (split, count) in enumerate(found.splits.items())
    )
    return f"<p>{found.samples:,} {escaped(found.unit)}{only}</p>" + (f"<p>{keys}</p>" if len(found.splits) > 1 else "")


def _unreadable(found: Statistics) -> str:
    if not found.unreadable_count:
        return ""
    files = "".join(f"<li>{escaped(file)}: {escaped(why)}</li>" for file, why in list(found.unreadable.items())[:_LISTED])
    left = found.unreadable_count - min(_LISTED, len(found.unreadable))
    more = f"<li>and {left:,} more</li>" if left else ""
    return f"<details><summary class=bad>could not be read: {found.unreadable_count:,}</summary><ul>{files}{more}</ul></details>"


def _section(figure: Figure, splits: list[str]) -> str:
    wide = isinstance(figure, Bars) or (isinstance(figure, Grid) and len(figure.names) > _SMALL)
    unit = f' <span class="soft small">{escaped(figure.unit)}</span>' if figure.unit else ""
    under = _numbers(figure) if isinstance(figure, Histogram) else _rest(figure) if isinstance(figure, Bars) else ""
    note = f'<p class="soft small">{escaped(figure.note)}</p>' if figure.note else ""
    kind = " class=wide" if wide else ""
    return f"<section{kind}><h2>{escaped(figure.title)}{unit}</h2>{_drawn(figure, splits)}{under}{note}</section>"


def _drawn(figure: Figure, splits: list[str]) -> str:
    if isinstance(figure, Bars):
        return bars(figure, splits)
    if isinstance(figure, Histogram):
        return histogram(figure, splits)
    return heat_map(figure) if figure.shape == "map" else pairs(figure)


def _numbers(figure: Histogram) -> str:
    """What the plot does not say."""
    parts = [f"{word} {number(value)}" for word, value in (("low", figure.low), ("median", figure.median), ("high", figure.high))]
    if figure.mean is not None:
        parts.append(f"mean {number(figure.mean)} ± {number(figure.deviation)}")
    parts += [f"{count:,} {word} the plot" for count, word in ((figure.below, "below"), (figure.above, "above")) if count]
    bad = [f"{count:,} {word}" for count, word in ((figure.nan, "NaN"), (figure.inf, "Inf")) if count]
    said = f' · <span class="bad">{", ".join(bad)}</span>' if bad else ""
    return f'<p class="soft small">{" · ".join(parts)}{said}</p>'


def _rest(figure: Bars) -> str:
    """Names that were not drawn."""
    left = len(figure.counts) + figure.others - min(len(figure.counts), MOST_NAMES)
    drawn = sum(list(figure.totals.values())[:MOST_NAMES])
    more = f" with {100 * (figure.whole - drawn) / max(1, figure.whole):.1f} %"
    return f'<p class="soft small">and {left:,} more{more}</p>' if left else ""
