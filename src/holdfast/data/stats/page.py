"""The statistics as one HTML file that needs nothing else."""

from __future__ import annotations

from holdfast.data.stats import svg
from holdfast.data.stats.figures import Bars, Figure, Grid, Histogram
from holdfast.data.stats.report import Statistics
from holdfast.data.stats.svg import escaped, number

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
        return svg.bars(figure, splits)
    if isinstance(figure, Histogram):
        return svg.histogram(figure, splits)
    return svg.heat_map(figure) if figure.shape == "map" else svg.pairs(figure)


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
    left = len(figure.counts) + figure.others - min(len(figure.counts), svg.MOST_NAMES)
    drawn = sum(list(figure.totals.values())[: svg.MOST_NAMES])
    more = f" with {100 * (figure.whole - drawn) / max(1, figure.whole):.1f} %"
    return f'<p class="soft small">and {left:,} more{more}</p>' if left else ""
