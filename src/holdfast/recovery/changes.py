"""A setting was changed on purpose: which learning rate goes with it, by what is usual and by what the gradients say.

A loss with more terms sends more gradient through the same weights (deep supervision: 40 to 100 % more), so that the old
learning rate is as much too high.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

STEPS = 50  # after a change, before the norms are compared
_LEAST, _NOTICED = 0.5, 1.2
_USUAL = (  # the first that fits counts
    (("deep supervision", "ema"), 0.70, "with an averaged model, deep supervision usually wants a learning rate 30 % lower"),
    (("deep supervision",), 0.75, "deep supervision usually wants a learning rate 25 % lower"),
    (("augmentation",), 0.875, "more augmentation usually wants a learning rate 10 to 15 % lower"),
)
_OFF = ("false", "none", "0", "0.0", "off", "")
_AUGMENTATION = ("augment", "hsv", "degrees", "translate", "mosaic", "mixup", "flip")
_BATCH = re.compile(r"batch\D*(\d+)\s*(?:->|→|to)\s*(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The factor on the learning rate, and why."""

    factor: float
    reason: str
    norm_before: float | None = None
    norm_after: float | None = None

    def as_row(self) -> dict[str, float | str | None]:
        """As the journal holds it."""
        return {"factor": self.factor, "why": self.reason, "norm_before": self.norm_before, "norm_after": self.norm_after}


def propose(setting: str, before: npt.ArrayLike = (), after: npt.ArrayLike = ()) -> Proposal | None:
    """The learning rate that goes with a change: `what` in the user's words, gradient norms before and after it.

    None where neither says that it should be another one. A factor above 1 is proposed, never applied by itself.
    """
    text = _turned_up(setting.lower().replace("_", " "))
    usual = next(((factor, reason) for marks, factor, reason in _USUAL if all(mark in text for mark in marks)), None)
    batch = _BATCH.search(text)
    if usual is None and batch is not None and int(batch[1]) > 0:
        times = int(batch[2]) / int(batch[1])
        usual = round(times**0.5, 3), f"a batch {times:g} times as large usually takes {times**0.5:.2f} times the learning rate"
    was, now = _median(before), _median(after)
    flow = now / was if was and now else 1.0
    if flow < _NOTICED:
        return None if usual is None else Proposal(factor=usual[0], reason=usual[1], norm_before=was, norm_after=now)
    measured = max(_LEAST, 1.0 / flow)
    reason = f"gradients grew {flow:.2f} times with the change"
    if usual is not None and usual[0] < measured:
        measured, reason = usual[0], f"{reason}; {usual[1]}"
    return Proposal(factor=round(measured, 3), reason=reason, norm_before=was, norm_after=now)


def _turned_up(text: str) -> str:
    """The changes without those that take something away: `deep supervision True -> False` sends less gradient, not more."""
    kept = []
    for change in text.split(";"):
        name, arrow, value = change.strip().partition(" -> ")
        name, _, before = name.rpartition(" ") if arrow else (name, "", "")
        less = value in _OFF or (_is_number(before) and _is_number(value) and float(value) < float(before))
        if arrow and less and "batch" not in name:
            continue
        kept.append("more augmentation" if any(word in name for word in _AUGMENTATION) else change)
    return ";".join(kept)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def _median(values: npt.ArrayLike) -> float | None:
    finite = np.asarray(values, dtype=float)
    finite = finite[np.isfinite(finite)]
    return float(np.median(finite)) if finite.size >= 5 else None
