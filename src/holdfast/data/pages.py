"""Pages from templates that share one stylesheet, and figures as SVG in the colours of the page, on light and dark paper."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.data.stats.figures import Bars, Figure, Grid, Histogram

if TYPE_CHECKING:
    from markupsafe import Markup

MOST_NAMES = 60  # of a list of bars
_WIDE, _ROW, _LEFT, _RIGHT = 880, 22, 190, 130
_PLOT_WIDE, _PLOT_HIGH, _AXIS = 410, 150, 40
_MAP = 360
_NUMBERS = 12  # classes up to which a table of pairs shows its numbers
_COLOURS = 5


def rendered(template: str, **values: object) -> str:
    """A page from its template; every value is escaped, and lone surrogates of file names are replaced."""
    from jinja2 import Environment, FileSystemLoader

    pages = Environment(loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True)
    return pages.get_template(template).render(**values).encode("utf-8", errors="replace").decode()


def number(value: float | None) -> str:
    """A few digits that matter."""
    if value is None or not math.isfinite(value):
        return "–" if value is None else str(value)
    if (value == round(value) and abs(value) < 1e6) or 1e3 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    digits, exponent, power = f"{value:.3g}".partition("e")
    return f"{digits}e{int(power)}" if exponent else digits


def plot(figure: Figure, splits: Sequence[str]) -> Markup:
    """A figure as SVG."""
    if isinstance(figure, Bars):
        return _bars(figure, splits)
    if isinstance(figure, Histogram):
        return _histogram(figure, splits)
    return _heat_map(figure) if figure.shape == "map" else _pairs(figure)


def _drawing(width: int, height: int, parts: Iterator[str]) -> Markup:
    from markupsafe import Markup

    return Markup(f'<svg viewBox="0 0 {width} {height}" role="img" style="max-width:{width}px">{"".join(parts)}</svg>')


def _label(x: float, y: float, words: object, *, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(str(words))}</text>'


def _bars(figure: Bars, splits: Sequence[str]) -> Markup:
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
            said = f"<title>{escape(name)}, {escape(split)}: {count:,}</title>"
            yield f'<rect class="{_colour(split, splits)}" x="{x:.1f}" y="{y - 12}" width="{wide:.1f}" height="16">{said}</rect>'
            x += wide
        more = "".join(f" · {title} {column.get(name, 0):,}" for title, column in figure.columns.items())
        yield _label(x + 6, y, f"{totals[name]:,} · {100 * totals[name] / whole:.1f} %{more}", more=' class="soft"')


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"


def _colour(split: str, splits: Sequence[str]) -> str:
    return f"c{splits.index(split) % _COLOURS if split in splits else 0}"


def _histogram(figure: Histogram, splits: Sequence[str]) -> Markup:
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
        percent = 100 * most * part
        said = f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"
        yield _label(_AXIS - 5, y + 4, said, anchor="end", more=' class="soft"')
    for split, some in shares.items():
        kind = "area" if len(shares) == 1 else "line"
        said = f"<title>{escape(split)}</title>"
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


def _heat_map(figure: Grid) -> Markup:
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


def _pairs(figure: Grid) -> Markup:
    """Which names come together: strong where most do, on one scale for the whole table."""
    count = max(1, len(figure.names))
    cell = max(14, min(64, 640 // count))
    longest = min(14, max(map(len, figure.names), default=0))
    top, left = 14 + 5 * longest, 16 + 7 * min(26, max(map(len, figure.names), default=0))
    return _drawing(left + cell * count + 60, top + cell * count + 2, _pair_parts(figure, cell, left, top))


def _pair_parts(figure: Grid, cell: int, left: int, top: int) -> Iterator[str]:
    most = figure.most_together
    for place, name in enumerate(figure.names):
        yield _label(left - 8, top + place * cell + cell / 2 + 4, _cut(name, 26), anchor="end")
        x = left + place * cell + cell / 2 + 4.0
        yield _label(x, top - 6, _cut(name, 14), more=f' transform="rotate(-40 {x:.1f} {top - 6})"')
        for other, value in enumerate(figure.values[place]):
            x, y = left + other * cell, top + place * cell
            said = f"<title>{escape(name)} and {escape(figure.names[other])}: {value:,.0f}</title>"
            kind = "own" if other == place else "c0"
            opacity = f' fill-opacity="{value / most * 0.85:.2f}"' if other != place else ""
            side = f'width="{cell - 1}" height="{cell - 1}"'
            yield f'<rect class="{kind}" x="{x + 0.5}" y="{y + 0.5}" {side}{opacity}>{said}</rect>'
            if len(figure.names) <= _NUMBERS:
                yield _label(x + cell / 2, y + cell / 2 + 4, number(value), anchor="middle")
