"""The statistics as one HTML file that needs nothing else."""

from __future__ import annotations

from holdfast.data.pages import MOST_NAMES, number, plot, rendered
from holdfast.data.stats.figures import Bars, Figure, Grid, Histogram
from holdfast.data.stats.report import Statistics

_MOST = 1000  # figures
_LISTED = 200
_SMALL = 6  # classes whose pairs fit into half of the page


def page(found: Statistics) -> str:
    """The whole file."""
    figures = [
        (one, plot(one, list(found.splits)), _is_wide(one), _below(one), _not_finite(one)) for one in found.figures[:_MOST]
    ]
    return rendered(
        "stats.html", title=f"{found.path}: {found.format}", found=found, figures=figures, more=len(found.figures) - _MOST,
        unreadable=list(found.unreadable.items())[:_LISTED],
    )  # fmt: skip


def _is_wide(figure: Figure) -> bool:
    return isinstance(figure, Bars) or (isinstance(figure, Grid) and len(figure.names) > _SMALL)


def _below(figure: Figure) -> str:
    """What the plot does not show: the statistics of a histogram, the names of bars that were not drawn."""
    if isinstance(figure, Histogram):
        some = (("low", figure.low), ("median", figure.median), ("high", figure.high))
        parts = [f"{word} {number(value)}" for word, value in some]
        parts += [f"mean {number(figure.mean)} ± {number(figure.deviation)}"] if figure.mean is not None else []
        parts += [f"{count:,} {word} the plot" for count, word in ((figure.below, "below"), (figure.above, "above")) if count]
        return " · ".join(parts)
    left = len(figure.counts) + figure.others - min(len(figure.counts), MOST_NAMES) if isinstance(figure, Bars) else 0
    if not isinstance(figure, Bars) or not left:
        return ""
    drawn = sum(list(figure.totals.values())[:MOST_NAMES])
    return f"and {left:,} more with {100 * (figure.whole - drawn) / max(1, figure.whole):.1f} %"


def _not_finite(figure: Figure) -> str:
    bad = ((figure.nan, "NaN"), (figure.inf, "Inf")) if isinstance(figure, Histogram) else ()
    return ", ".join(f"{count:,} {word}" for count, word in bad if count)


__all__ = ["number", "page"]
