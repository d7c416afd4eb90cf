"""What the guard tells: a finding with what led to it, and what was done. Bounded, however many updates are bad."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from holdfast.inside.gradients.step_metrics import StepMetrics
from holdfast.inside.guard.failure_context import FailureContext, about_variables
from holdfast.signals.journal import Journal

_TOLD_EACH = 3  # after so many of a kind, only every doubling of their number is told


class Report:
    """Writes the guard's findings and actions into the journal."""

    def __init__(
        self,
        journal: Journal,
        rank: int,
        name_of: Callable[[int], str],
        failure_context: FailureContext,
        in_half: Callable[[], bool] = bool,
    ) -> None:
        self._journal, self._rank, self._name_of, self._in_half = journal, rank, name_of, in_half
        self._counts: dict[str, int] = {}
        self.failure_context = failure_context

    def bad_update(
        self,
        step: int,
        code: str,
        metrics: StepMetrics,
        past: list[tuple[float | None, float | None]],
        *,
        was_skipped: bool,
        at_once: bool = False,
        optimizer: str = "",
    ) -> None:
        """An update was not finite. `at_once`: the loop is still in that step, so its variables can be looked at.

        `optimizer` is said where it is not the main one: the step is that of the main one, which comes next.
        """
        count = self._count(code)
        if not _is_told(count):
            return
        evidence: dict[str, Any] = {
            "loss": _plain(metrics.loss),
            "norm": _plain(metrics.stats.norm if metrics.stats is not None else metrics.norm),
            "lr": _plain(metrics.lr),
            "loss_before": [_plain(loss) for loss, _ in past],
            "norm_before": [_plain(norm) for _, norm in past],
        }
        if optimizer:
            evidence["optimizer"] = optimizer
        if count > 1:
            evidence["so_far"] = count
        if self._in_half():
            evidence["half"] = True
        with contextlib.suppress(Exception):  # what cannot be named is left out, the finding is not
            evidence.update(self._parameters(metrics))
            evidence.update(self.failure_context.about_batch(step, count <= 3))
            evidence.update(self.failure_context.about_weights() if at_once else {})
        if at_once and evidence.get("input", "unknown") in ("finite", "unknown"):
            with contextlib.suppress(Exception):
                evidence.update(self._variables(metrics))
        self._write("finding", code=code, severity="critical", step=step, evidence=evidence)
        if evidence.get("input", "unknown") not in ("finite", "unknown") and self._count("non-finite-input") == 1:
            self._write("finding", code="non-finite-input", severity="critical", step=step, evidence={"input": evidence["input"]})
        if was_skipped:
            self._write("action", action="skip-batch", step=step, because=code, settings={}, state="done")

    def _variables(self, metrics: StepMetrics) -> dict[str, Any]:
        """What the loop holds. Where the loss is finite, what went into it was: something bad that lies about came later."""
        found = about_variables(self.failure_context.models())
        if metrics.loss is not None and math.isfinite(metrics.loss) and found.get("input") != "finite":
            found.pop("input", None)
        return found

    def clipped(self, step: int, metrics: StepMetrics, *, norm: float, limit: float) -> None:
        """An update was clipped."""
        if _is_told(self._count("clip")):
            evidence = {"norm": norm, "limit": limit, "loss": _plain(metrics.loss), "lr": _plain(metrics.lr)}
            self._write("finding", code="gradient-explosion", severity="warning", step=step, evidence=evidence)
            settings = {"max_norm": limit, "steps": 1}
            self._write("action", action="clip", step=step, because="gradient-explosion", settings=settings, state="done")

    def cannot(self, what: str, words: str) -> None:
        """Holdfast cannot do a thing in this loop: said once, with the line to add where there is one."""
        if self._count(f"cannot {what}: {words}") == 1:
            self._write("finding", code="holdfast-degraded", severity="info", evidence={"what": what, "error": words})

    def _parameters(self, metrics: StepMetrics) -> dict[str, Any]:
        each = metrics.stats.each if metrics.stats is not None else None
        if each is None:
            return {}
        bad = [self._name_of(int(code)) for code in each.names[np.asarray(each.non_finite) != 0]]
        if not bad:
            return {}
        loss_is_finite = metrics.loss is None or math.isfinite(metrics.loss)
        return {"parameter": bad[0], "bad_parameters": len(bad), **self.failure_context.about_parameters(bad, loss_is_finite)}

    def _count(self, what: str) -> int:
        self._counts[what] = self._counts.get(what, 0) + 1
        return self._counts[what]

    def _write(self, kind: str, **fields: Any) -> None:
        with contextlib.suppress(OSError):
            self._journal.write(kind, rank=self._rank, **fields)


def _is_told(count: int) -> bool:
    return count <= _TOLD_EACH or count & (count - 1) == 0


def _plain(value: float | None) -> float | str | None:
    """A number as JSON holds it: not finite ones as words."""
    return value if value is None or math.isfinite(value) else str(value)
