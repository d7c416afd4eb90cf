"""`RollBack`: go back to a state from before the trouble, more gently; further back each time it fails again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.diagnosis.diagnosis import Diagnosis
from holdfast.recovery.past import ActionLog, Past
from holdfast.signals.actions import Action

CALLED_BY = ("loss-divergence", "metric-collapse", "non-finite-weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBack:
    """Restore the newest snapshot from before the trouble, and lower the learning rate, or keep it from jumping again.

    A failure within `watch_steps` of a roll-back goes `further` steps back or more with a stronger cut, the next one to the
    newest checkpoint on disk from before the trouble (where no snapshot is that old, all of them do), and the one after that
    stops the training with a report. `margin` steps before the onset are not trusted. `at_most` bounds all roll-backs within
    `within_steps`, related or not.

    The first cut is not for good: most trouble has other reasons, and a rate that stays low costs what the run could have
    learned. Once `regain_steps` went well, it climbs back within as many. If it was the learning rate, the next cut stays.
    """

    lr_factor: float = 0.75
    after_explosion: float = 0.25
    from_start: float = 0.1
    again: float = 0.5
    watch_steps: int = 200
    margin: int = 4
    further: int = 50
    at_most: int = 6
    within_steps: int = 5000
    warmup_steps: int = 0
    regain_steps: int = 50
    called_by: tuple[str, ...] = CALLED_BY

    def decide(self, diagnosis: Diagnosis, past: ActionLog) -> Action | None:
        """Choose where to go back to, or stop when going back has not helped."""
        finding = diagnosis.finding(*self.called_by)
        if finding is None or diagnosis.causes[:1] == ("data-non-finite",):
            return None
        failed = self._failures(diagnosis, past)
        tried = past.tried("roll-back", since=diagnosis.step - self.within_steps)
        no_checkpoint = any(attempt.state == "refused" and attempt.action.settings.get("to") == "disk" for attempt in failed)
        if len(failed) >= 3 or len(tried) >= self.at_most or no_checkpoint:
            return self._stop(diagnosis, finding.code, len(failed) or len(tried))
        to = self._target(diagnosis, failed)
        factor = self._factor(diagnosis, len(failed))
        settings: dict[str, Any] = {"to": to, "lr_factor": factor, "warmup_steps": self.warmup_steps}
        settings["before"] = self._limit(diagnosis)  # a checkpoint on disk may be newer than the snapshot
        if to != "disk" and (older := _steps_of(failed)):
            settings["before"] = min(settings["before"], min(older) - self.further)
        if factor < 1.0 and not tried and self._went_well(diagnosis):
            settings["regain_steps"] = self.regain_steps
        if "lr_jumped_at" in diagnosis.evidence:
            settings["lr_limit"] = float(f"{float(diagnosis.evidence['lr_before']):.4g}")
        return Action("roll-back", step=diagnosis.step, because=finding.code, settings=settings)

    def _failures(self, diagnosis: Diagnosis, past: ActionLog) -> list[Past]:
        """The chain of roll-backs, each within the watch of the one before, that this trouble follows."""
        chain: list[Past] = []
        until = diagnosis.step
        for attempt in reversed(past.tried("roll-back")):
            if until - attempt.at > self.watch_steps + self._seen_after(diagnosis, until):
                break
            chain.append(attempt)
            until = attempt.at
        return chain

    def _onset(self, diagnosis: Diagnosis) -> int:
        """Where this trouble began; a decline that was noticed before it has its own, much earlier beginning."""
        sudden = (*self.called_by, "gradient-explosion")
        onsets = [finding.onset for finding in diagnosis.findings if finding.code in sudden]
        known = (int(diagnosis.evidence.get(name, diagnosis.step)) for name in ("lr_jumped_at", "damaged_at"))
        return min([*onsets, *known])

    def _seen_after(self, diagnosis: Diagnosis, until: int) -> int:
        """How long the trouble had lasted when it was judged: the watch is about its beginning."""
        return max(0, diagnosis.step - self._onset(diagnosis)) if until == diagnosis.step else 0

    def _limit(self, diagnosis: Diagnosis) -> int:
        """The last step whose state is trusted. A metric's collapse is known to have come after the last good evaluation, and
        the state before the step whose learning rate had jumped is as good as any.
        """
        onset, collapse = self._onset(diagnosis), diagnosis.finding("metric-collapse")
        if onset == diagnosis.evidence.get("lr_jumped_at"):
            return onset
        return onset - (1 if collapse is not None and collapse.onset == onset else self.margin)

    def _target(self, diagnosis: Diagnosis, failed: list[Past]) -> int | str:
        limit = self._limit(diagnosis)
        older = _steps_of(failed)
        for step in sorted(diagnosis.evidence.get("snapshots", ()), reverse=True):
            if step <= limit and all(step <= other - self.further for other in older) and len(failed) < 2:
                return int(step)
        snapshots = diagnosis.evidence.get("snapshots", ())
        if "from_start" in diagnosis.evidence and snapshots:  # all of them are from after the first update
            return int(min(snapshots))
        return "disk"

    def _factor(self, diagnosis: Diagnosis, failures: int) -> float:
        """The cut. A learning rate that had jumped was the trouble itself: it comes back with the snapshot, is kept from
        jumping again, and is left as it was; so it is where weights were overwritten or damaged, or the state is not finite
        though the loss is, which no rate does. Only if that was not enough is it cut here, too.
        """
        exploded = diagnosis.evidence.get("exploded")
        not_the_rate = "lr_jumped_at" in diagnosis.evidence or diagnosis.causes[:1] == ("weights-overwritten",)
        not_the_rate = not_the_rate or bool(diagnosis.evidence.keys() & {"bad_tensors", "damaged_at"})
        factor = 1.0 if not_the_rate else self.after_explosion if exploded else self.lr_factor
        if "from_start" in diagnosis.evidence:  # the learning rate has never worked
            factor = self.from_start
        return float(f"{factor * self.again**failures:.4g}")

    def _went_well(self, diagnosis: Diagnosis) -> bool:
        """Whether the learning rate had worked for a while: one that was too high from the start, or that goes with a
        setting that was changed just before, is not restored.
        """
        return self._onset(diagnosis) >= 2 * self.regain_steps > 0 and "setting-changed" not in diagnosis.causes

    def _stop(self, diagnosis: Diagnosis, code: str, times: int) -> Action:
        why = (
            f"{code} at step {diagnosis.step:,} again after {times} roll-back{'s' if times != 1 else ''}: "
            f"the trouble began at step {self._onset(diagnosis)}. Most likely: {', '.join(diagnosis.causes[:2]) or 'unknown'}."
        )
        settings: dict[str, Any] = {"why": why, "code": 1}
        return Action("stop", step=diagnosis.step, because=code, settings=settings)


def _steps_of(attempts: list[Past]) -> list[int]:
    """The steps of the snapshots that were gone back to."""
    steps = (attempt.action.settings.get("to") for attempt in attempts)
    return [step for step in steps if isinstance(step, int)]
