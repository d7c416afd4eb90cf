"""A finding: a symptom that was seen, with the numbers that show it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

_WORDS = ("inf", "-inf", "nan")  # numbers that JSON does not have


@dataclass(frozen=True, slots=True)
class Finding:
    """One symptom. `step` is the newest step that was looked at; where it began is `onset` in the evidence."""

    code: str
    step: int = field(kw_only=True)
    severity: str = field(default="warning", kw_only=True)
    evidence: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    series: str | None = field(default=None, kw_only=True)  # the curve that shows it
    epoch: float | None = field(default=None, kw_only=True)

    @property
    def onset(self) -> int:
        """The first step of the trouble, as far as it can be told."""
        return int(self.evidence.get("onset", self.step))

    def with_numbers(self) -> Finding:
        """The finding with what the journal wrote as a word, such as `inf`, as a number again."""
        words = {name: float(value) for name, value in self.evidence.items() if isinstance(value, str) and value in _WORDS}
        return replace(self, evidence={**self.evidence, **words}) if words else self

    def as_row(self) -> dict[str, Any]:
        """The finding as the journal holds it: plain numbers, shortened to what matters."""
        evidence = {name: plain(value) for name, value in self.evidence.items()}
        return {"code": self.code, "severity": self.severity, "step": self.step, "evidence": evidence}


def plain(value: Any) -> Any:
    """A value that JSON takes: numpy's numbers become Python's, floats get six digits, what is not finite becomes a word."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(f"{float(value):.6g}") if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(one) for one in value]
    return value
