"""What the numbers in an out-of-memory message say: who holds the memory, and whether it is in pieces."""

from __future__ import annotations

import re

from holdfast.units import size

_UNITS = {"kib": 2**-20, "mib": 2**-10, "gib": 1.0, "tib": 2.0**10, "kb": 1e3 / 2**30, "mb": 1e6 / 2**30, "gb": 1e9 / 2**30}
_AMOUNT = r"(?P<{}>[\d.]+) ?(?P<{}_unit>[KMGT]i?B)"
_WORDINGS = {  # of the versions so far; what is not there is not said
    "asked": r"Tried to allocate " + _AMOUNT,
    "total": r"(?:total capacity of |GPU \d+; )" + _AMOUNT,
    "free": r"(?:of which )?" + _AMOUNT + r"(?: is)? free",
    "own": r"this process has " + _AMOUNT + r" memory in use",
    "used": r"(?:Of the allocated memory |total capacity; )" + _AMOUNT + r" (?:is allocated by PyTorch|already allocated)",
    "idle": r"and " + _AMOUNT + r" is reserved by PyTorch but unallocated",
    "reserved": _AMOUNT + r" reserved in total by PyTorch",
}


def amounts_in(message: str) -> dict[str, float]:
    """The numbers of a message, in GiB."""
    amounts = {}
    for name, regex in _WORDINGS.items():
        if match := re.search(regex.format(name, name), message):
            amounts[name] = float(match[name]) * _UNITS[match[f"{name}_unit"].lower()]
    if "idle" not in amounts and {"reserved", "used"} <= amounts.keys():
        amounts["idle"] = max(0.0, amounts["reserved"] - amounts["used"])
    return amounts


def hint_from_amounts(message: str) -> str | None:
    """What stands out in the numbers; None where nothing does."""
    amounts = amounts_in(message)
    total, requested, idle = amounts.get("total"), amounts.get("asked", 0.0), amounts.get("idle", 0.0)
    if not total:
        return None
    if requested > total:
        return f"One tensor of {requested:.3g} GiB was requested, more than the whole GPU has ({total:.3g} GiB): check its shape."
    others = total - amounts["free"] - amounts["own"] if {"free", "own"} <= amounts.keys() else 0.0
    if others > 0.1 * total:
        return f"Other processes hold {others:.3g} of the GPU's {total:.3g} GiB: check nvidia-smi."
    if idle > max(requested, 0.05 * total):
        return (
            f"{idle:.3g} GiB are reserved but unused, more than the {requested:.3g} GiB requested: memory is fragmented."
            " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True helps."
        )
    return None


def _shown(gib: float) -> str:
    return size(gib * (1 << 30))
