"""Values of a run as a terminal and a page show them, and as JSON can hold them."""

from __future__ import annotations

import math
from typing import Any

from holdfast import units
from holdfast.units import DASH


def number(value: float | None) -> str:
    """About four digits that matter; whole numbers as they are."""
    if value is None:
        return DASH
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return {True: "nan"}.get(math.isnan(value), "inf" if value > 0 else "-inf")
    if value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.2e}"
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def duration(seconds: float | None) -> str:
    """Seconds as people read them."""
    if seconds is None:
        return DASH
    return f"{seconds:.1f} s" if seconds < 1 else units.duration(seconds)


def for_json(value: Any) -> Any:
    """A value that JSON can hold; NaN and infinity, which it cannot, as text, so that they stay visible."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): for_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [for_json(item) for item in value]
    return value if value is None or isinstance(value, (str, int, float)) else str(value)
