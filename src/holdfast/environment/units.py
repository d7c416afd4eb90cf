"""Bytes and seconds as a person says them."""

from __future__ import annotations


def size(value: float) -> str:
    """Bytes in a unit that fits."""
    for unit in ("B", "KB", "MB"):
        if abs(value) < 1000:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} GB" if value < 1000 else f"{value:,.0f} GB"


def several(count: int, one: str, more: str | None = None) -> str:
    """A count with its noun."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"
