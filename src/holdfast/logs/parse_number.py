"""Numbers as people write them into logs."""

from __future__ import annotations

import math
import re

_WORDS = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "-nan(ind)": math.nan, "1.#qnan": math.nan, "1.#inf": math.inf}
_WRAPPED = re.compile(r"(?:tensor|array|(?:np\.|numpy\.|jnp\.)?float\d*)\(\[?([^,)\]]*)")
_UNITS = {"b": 1.0, "k": 2.0**10, "m": 2.0**20, "g": 2.0**30, "t": 2.0**40}
_SIZE = re.compile(r"([-+]?[\d.,]+)\s*([kmgt]?)(?:i?b)?$")


def parse_number(text: str, *, decimal: str | None = None) -> float | None:
    """A number, or None: also `nan`, `-inf`, `62.5%`, `1,234.5`, `0,0312` and `tensor(0.5)`.

    With `decimal=","` a comma never parts thousands: `1,312` is a little more than one.
    """
    text = text.strip()
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        pass
    text = text.strip("'\" ").lower()
    if (wrapped := _WRAPPED.match(text)) is not None:
        text = wrapped[1]
    text = text.removesuffix("%").rstrip()
    sign, bare = (-1.0, text[1:]) if text[:1] == "-" else (1.0, text.removeprefix("+"))
    if bare in _WORDS:
        return sign * _WORDS[bare]
    if "," in bare:
        bare = bare.replace(".", "").replace(",", ".") if decimal == "," else _without_thousands(bare)
    try:
        return sign * float(bare) if "_" not in bare else None
    except ValueError:
        return None


def parse_size(text: str) -> float | None:
    """Bytes: `7.1G`, `512 MiB`; a number without a unit as it is."""
    match = _SIZE.match(text.strip().lower())
    value = parse_number(match[1]) if match is not None else None
    return None if match is None or value is None else value * _UNITS[match[2] or "b"]


def _without_thousands(bare: str) -> str:
    whole, _, part = bare.rpartition(",")
    return whole.replace(",", "") + part if len(part.split(".")[0]) == 3 and whole.strip("0") else f"{whole}.{part}"
