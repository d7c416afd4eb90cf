"""Numbers as people write them into logs."""

from __future__ import annotations

import math

_WORDS = {"nan": math.nan, "inf": math.inf, "infinity": math.inf}


def number(text: str) -> float | None:
    """A number, or None: also `nan`, `-inf`, `62.5%`, `1,234.5`, `0,0312` and `tensor(0.5)`."""
    text = text.strip().strip("'\"").lower()
    if text.startswith("tensor("):
        text = text[7:].split(",")[0].rstrip(")")
    text = text.removesuffix("%")
    sign, bare = (-1.0, text[1:]) if text[:1] == "-" else (1.0, text.removeprefix("+"))
    if bare in _WORDS:
        return sign * _WORDS[bare]
    if "," in bare:
        whole, _, part = bare.rpartition(",")
        bare = whole.replace(",", "") + part if len(part.split(".")[0]) == 3 and whole.strip("0") else f"{whole}.{part}"
    try:
        return sign * float(bare)
    except ValueError:
        return None
