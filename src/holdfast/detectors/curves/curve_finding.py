"""Make a finding about a curve."""

from __future__ import annotations

from typing import Any

from holdfast.detectors.finding import Finding
from holdfast.signals.curves import Curve


def curve_finding(code: str, curve: Curve, index: int, *, severity: str = "warning", **evidence: Any) -> Finding:
    """A finding at a point of a curve."""
    step = int(curve.steps[index])
    return Finding(code, step=step, severity=severity, series=curve.name, epoch=curve.epoch_at(index), evidence=evidence)
