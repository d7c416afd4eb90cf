"""Policies about the end of a training: stop when it no longer gets better, and save before it stops."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.diagnosis.diagnosis import Diagnosis
from holdfast.recovery.past import ActionLog
from holdfast.recovery.policy import Policy
from holdfast.signals.actions import Action


@dataclass(frozen=True, slots=True, kw_only=True)
class StopEarly:
    """Stop, in good order, when a held-out metric has not got better for `patience` evaluations; off by default, 20 is usual."""

    patience: int | None = None
    metric: str | None = None

    def decide(self, diagnosis: Diagnosis, past: ActionLog) -> Action | None:
        """Stop once."""
        finding = diagnosis.finding("loss-plateau")
        if self.patience is None or finding is None or past.count("stop"):
            return None
        name = str(finding.evidence.get("metric"))
        if int(finding.evidence.get("evaluations", 0)) < self.patience or self.metric not in (None, name):
            return None
        best, at = finding.evidence.get("best"), finding.evidence.get("best_step")
        why = f"{name} has not improved for {self.patience} evaluations; the best was {best:.6g} at step {at}."
        return Action("stop", step=diagnosis.step, because=finding.code, settings={"why": why, "code": 0})


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCheckpoint:
    """Save a checkpoint before another policy stops the run.

    Asked before the ones it stands in front of: it asks them itself, and if one would stop the training whose weights are
    sound, the checkpoint comes first and the stop follows at the next look.
    """

    before: tuple[Policy, ...] = field(default=())
    unless: tuple[str, ...] = ("non-finite-weights", "loss-divergence", "metric-collapse")

    def decide(self, diagnosis: Diagnosis, past: ActionLog) -> Action | None:
        """Save once for a diagnosis."""
        if diagnosis.codes & set(self.unless) or past.tried("save-checkpoint", since=diagnosis.step):
            return None
        if not any((action := policy.decide(diagnosis, past)) and action.kind == "stop" for policy in self.before):
            return None
        return Action("save-checkpoint", step=diagnosis.step, because=next(iter(diagnosis.findings)).code)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepBest:
    """Save a checkpoint whenever a held-out metric is better than ever: it stays, whatever its age."""

    metric: str | None = None

    def decide(self, diagnosis: Diagnosis, past: ActionLog) -> Action | None:
        """Save once for an evaluation; the first one is no best."""
        finding = diagnosis.finding("loss-plateau")
        if finding is None or int(finding.evidence.get("evaluations", 1)) or past.tried("save-checkpoint", since=finding.step):
            return None
        name, value = str(finding.evidence.get("metric")), finding.evidence.get("best")
        if self.metric not in (None, name):
            return None
        return Action("save-checkpoint", step=finding.step, because=finding.code, settings={"metric": name, "best": value})
