"""How values look in a terminal: numbers, bytes, durations, sparklines, and what JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast import units
from holdfast.probe import values as shown

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

DASH = units.DASH
size = units.size
number, duration, for_json = shown.number, shown.duration, shown.for_json
WIDTH = 100  # of a page that goes nowhere near a terminal
_BARS = "▁▂▃▄▅▆▇█"
_NOT_FINITE = "×"


def share(value: float | None) -> str:
    """A share as per cent."""
    if value is None:
        return DASH
    return f"{value * 100:.2f} %" if value < 0.0995 else f"{value * 100:.0f} %"


def rate(per_second: float | None) -> str:
    """Steps a second, or seconds a step where those are few."""
    if per_second is None:
        return DASH
    return f"{per_second:.3g}/s" if per_second >= 1 else f"{1 / per_second:.3g} s each"


def sparkline(values: npt.NDArray[np.float64], width: int, *, from_zero: bool = False) -> str:
    """The curve in one line; a stretch with a value that is not finite shows a cross.

    The scale turns logarithmic where the values span more than two decades.
    """
    import numpy as np

    if not len(values):
        return ""
    parts = np.array_split(values, min(width, len(values)))
    heights = np.array([part.mean() if np.isfinite(part).all() else math.nan for part in parts])
    good = heights[np.isfinite(heights)]
    if not len(good):
        return _NOT_FINITE * len(parts)
    if from_zero:
        good = np.append(good, 0.0)
    elif good.min() > 0 and good.max() > 100 * good.min():
        heights, good = np.log(heights), np.log(good)
    low, span = good.min(), good.max() - good.min()
    flat = span <= 1e-9 * max(abs(low), 1e-300)
    return "".join(_bar(0.0 if flat else (h - low) / span) for h in heights)


def _bar(height: float) -> str:
    return _BARS[min(int(height * len(_BARS)), len(_BARS) - 1)] if math.isfinite(height) else _NOT_FINITE


def unique(names: Sequence[str]) -> list[str]:
    """Column names, each once: a second `loss` becomes `loss_2`."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return result
