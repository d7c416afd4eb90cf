"""Maps and tables of pairs in a terminal: two rows of a map in one line of half blocks, or shades where there is no colour."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import set_cell_size
from rich.text import Text

from holdfast.cli.checkpoints.layout import shortened
from holdfast.data.stats.figures import Grid

_RAMP = ("#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725")
_SHADES = " ·░▒▓█"
_FEW = 16  # fields: each is shown twice as wide and high
_PAIRS = 8  # classes
_NAME, _CELL = 18, 11


def heat_map(grid: Grid, *, coloured: bool) -> Iterator[Text]:
    """The image from above: bright where there is most."""
    most = max((value for row in grid.values for value in row), default=0.0) or 1.0
    rows = (
        grid.values
        if len(grid.values) > _FEW
        else [[value for value in row for _ in (0, 1)] for row in grid.values for _ in (0, 1)]
    )
    for upper, lower in zip(rows[0::2], rows[1::2], strict=True):
        line = Text("  ")
        for above, below in zip(upper, lower, strict=True):
            if coloured:
                line.append("▀", f"{_colour(above / most)} on {_colour(below / most)}")
            else:
                line.append(_shade((above + below) / 2 / most))
        yield line
    yield Text(f"  maximum: {most:,.4g}", "dim")


def _colour(share: float) -> str:
    return _RAMP[min(int(share * len(_RAMP)), len(_RAMP) - 1)]


def _shade(share: float) -> str:
    return _SHADES[min(int(share * (len(_SHADES) - 1) + (share > 0)), len(_SHADES) - 1)]


def _cut(name: str) -> str:
    name = shortened(name, 1000)
    return name if len(name) < _CELL else name[: _CELL - 2] + "…"


def pairs(grid: Grid, width: int) -> Iterator[Text]:
    """How often two names come together; at least half as often as the most frequent pair is bold."""
    some = min(_PAIRS, len(grid.names), max(1, (width - _NAME) // _CELL))
    named = max(6, min(_NAME, max(len(name) for name in grid.names[:some])))
    yield Text(" " * (named + 2) + "".join(f"{_cut(name):>{_CELL}}" for name in grid.names[:some]), "dim")
    for place, name in enumerate(grid.names[:some]):
        line = Text(set_cell_size(f"  {shortened(name, named)}", named + 2))
        for other, value in enumerate(grid.values[place][:some]):
            style = "dim" if other == place or not value else "bold cyan" if value >= grid.most_together / 2 else ""
            line.append(f"{value:>{_CELL},.0f}", style)
        yield line
    if len(grid.names) > some:
        yield Text(f"  and {len(grid.names) - some:,} more classes; --json and --html have them", "dim")
