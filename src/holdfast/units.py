"""Numbers as people read them: bytes, counts with their noun, durations, measured values. `None` is a dash."""

from __future__ import annotations

import math

DASH = "–"
_BYTES = ("bytes", "KiB", "MiB", "GiB", "TiB")


def size(value: float | None, of: float | None = None) -> str:
    """Bytes in a unit that fits: `375 MiB`; with `of`, both in one unit: `1.2 of 3.4 GiB`."""
    if value is None:
        return DASH
    largest, power = max(abs(value), abs(of or 0)), 0
    while largest >= 1000 and power < len(_BYTES) - 1:
        largest, power = largest / 1024, power + 1
    return " of ".join(_digits(one / 1024**power) for one in (value, of) if one is not None) + f" {_BYTES[power]}"


def duration(seconds: float | None) -> str:
    """Seconds as a person says them: `75.9 µs`, `0.4 s`, `2 min 5 s`, `3 d 4 h`."""
    if seconds is None:
        return DASH
    if 0 < seconds < 0.0995:
        return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def count(value: int, noun: str, plural: str | None = None) -> str:
    """A count with its noun: `1 file`, `2,304 rows`, `3 boxes`."""
    return f"{value:,} {noun if value == 1 else plural or noun + 's'}"


def number(value: float | None) -> str:
    """A measured value in the few digits that matter: `4,153`, `0.00253`, `1.2e8`."""
    if value is None or not math.isfinite(value):
        return DASH if value is None else str(value)
    if (value == round(value) and abs(value) < 1e6) or 1e3 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    digits, exponent, power = f"{value:.3g}".partition("e")
    return f"{digits}e{int(power)}" if exponent else digits


def _digits(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
