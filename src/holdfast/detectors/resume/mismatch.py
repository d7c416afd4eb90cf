"""`resume-mismatch`: a resumed training does not continue where the run before stopped."""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.detectors.resume.fit import Fit, levels_of, loss_fit
from holdfast.detectors.resume.runs import Restored, Resumed, RunBefore
from holdfast.detectors.resume.suspects import off_from_the_start, suspects
from holdfast.signals.view import Floats

VERDICTS = ("healthy", "warning", "explosion")


def resume_mismatch(before: RunBefore, after: Resumed, restored: Restored, *, active_after: int = 10) -> Finding | None:
    """Compare the first steps after a resume with the run before; None where they fit.

    `info` if a state was not seen to be restored and nothing shows it, `warning` if the losses, the learning rate or the updates
    do, `critical` if what was learned is being lost. Without a run before only the last can be told.
    """
    if len(after.loss) < active_after:
        return None
    fit = loss_fit(before, after)
    exploded = explosion(after, fit, from_the_start=off_from_the_start(before, after, restored, fit))
    suspected = suspects(before, after, restored, fit)
    off = fit is not None and fit.is_off
    if not suspected and not off and not exploded:
        return None
    severity = "critical" if exploded else "warning" if off or any(one.proven for one in suspected) else "info"
    verdict = {"critical": "explosion", "warning": "warning"}.get(severity, "healthy")
    evidence: dict[str, Any] = {"verdict": verdict}
    if off or exploded:
        evidence |= fit.as_row() if fit is not None else {"first_loss": float(after.loss[0]), "loss": float(after.loss[-1])}
    for one in reversed(suspected):
        evidence |= one.evidence
    evidence["suspects"] = [one.name for one in suspected]
    return Finding("resume-mismatch", step=len(after.loss) - 1, severity=severity, evidence=evidence)


def explosion(
    after: Resumed, fit: Fit | None, *, from_the_start: bool = False, in_a_row: int = 3, times: float = 5.0, sustained: int = 20
) -> bool:
    """Whether losses are no longer finite, or all that was learned was lost after a first loss that was as it should be.

    Without a run before: whether they rise to `times` the first ones and stay there.
    """
    losses = after.loss
    bad = ~np.isfinite(losses[-in_a_row:])
    if len(bad) == in_a_row and bad.all():
        return True
    if fit is not None:
        return fit.is_off and (fit.lost >= 3.0 or (fit.lost >= 0.8 and not from_the_start)) and _is_up(losses, fit)
    finite: Floats = losses[np.isfinite(losses)]
    if len(finite) < sustained + 3:
        return False
    return bool(levels_of(finite[-sustained:], sustained)[-1] > times * float(finite[:3].max()) > 0)


def _is_up(losses: Floats, fit: Fit) -> bool:
    """Whether the newest losses are still high: a short jump that comes back by itself is no explosion."""
    newest = losses[-10:]
    return bool(np.median(newest[np.isfinite(newest)]) > fit.normal + 0.5 * (fit.level - fit.normal))
