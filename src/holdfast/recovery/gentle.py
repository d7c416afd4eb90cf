"""Policies that repair without going back: skip a batch, clip, lower the learning rate, split the batch."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.diagnosis.diagnosis import Diagnosis
from holdfast.recovery.past import ActionLog
from holdfast.signals.actions import Action


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipBatch:
    """Skip an update whose batch is the cause, a few times at most."""

    at_most: int = 3
    within_steps: int = 1000

    def decide(self, diagnosis: Diagnosis, past: ActionLog) -> Action | None:
        """Skip while the batch is the likely cause and the trouble has not passed by itself."""
        over = bool(diagnosis.evidence.get("recovered"))
        if diagnosis.causes[:1] != ("bad-batch",) or over or _spent(self, "skip-batch", diagnosis, past):
            return None
        return Action("skip-batch", step=diagnosis.step, because="bad-batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipSpikes:
    """Hold exploding gradients at a few times their usual norm for a while."""

    times: float = 3.0
    steps: int = 200
    at_most: int = 3
    within_steps: int = 2000

    def decide(self, diagnosis: Diagnosis, past: ActionLog) -> Action | None:
        """Clip while the loss has not diverged: after that, only going back helps."""
        finding = diagnosis.finding("gradient-explosion")
        if finding is None or "loss-divergence" in diagnosis.codes or _spent(self, "clip", diagnosis, past):
            return None
        limit = float(f"{self.times * float(finding.evidence['normal']):.4g}")
        settings = {"max_norm": limit, "steps": self.steps}
        return Action("clip", step=diagnosis.step, because=finding.code, settings=settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerLearningRate:
    """Lower the learning rate when a held-out metric goes down after something was changed.

    A metric that goes down without a change is often overfitting, and a lower learning rate is no cure for that.
    """

    factor: float = 0.8
    at_most: int = 3
    within_steps: int = 5000
    only_after_a_change: bool = True
    warmup_steps: int = 50

    def decide(self, diagnosis: Diagnosis, past: ActionLog) -> Action | None:
        """One cut for each decline."""
        finding = diagnosis.finding("metric-decline")
        unexplained = self.only_after_a_change and "setting-changed" not in diagnosis.causes
        if finding is None or unexplained or _spent(self, "lower-lr", diagnosis, past):
            return None
        settings = {"factor": self.factor, "warmup_steps": self.warmup_steps}
        return Action("lower-lr", step=diagnosis.step, because=finding.code, settings=settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkMicroBatch:
    """Split batches that do not fit into the GPU's memory; the gradient stays the same."""

    parts: int = 2
    at_most: int = 4
    within_steps: int = 1000

    def decide(self, diagnosis: Diagnosis, past: ActionLog) -> Action | None:
        """Double the number of parts each time."""
        finding = diagnosis.finding("gpu-out-of-memory")
        if finding is None or _spent(self, "shrink-micro-batch", diagnosis, past):
            return None
        before = past.last("shrink-micro-batch")
        parts = self.parts * (int(before.action.settings.get("parts", 1)) if before is not None else 1)
        return Action("shrink-micro-batch", step=diagnosis.step, because=finding.code, settings={"parts": parts})


def _spent(
    policy: SkipBatch | ClipSpikes | LowerLearningRate | ShrinkMicroBatch, kind: str, diagnosis: Diagnosis, past: ActionLog
) -> bool:
    return len(past.tried(kind, since=diagnosis.step - policy.within_steps)) >= policy.at_most
