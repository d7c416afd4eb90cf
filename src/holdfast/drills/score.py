"""Score a trial against its control: detected, cause right, survived, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.detectors.finding import plain
from holdfast.drills.fault import Expected, hooks_of
from holdfast.drills.faults import find
from holdfast.drills.metric import rise_of_loss
from holdfast.drills.outcome import Raised
from holdfast.drills.plan import Planned
from holdfast.drills.trial import Trial

RESTARTED = "restarted"  # from the first step: the run reached its end, and what it had done was lost
NO_HARM = "it did no harm here: the loss did not rise"
_RISE = 0.01  # of what had been learned until the fault
_ABSENT = {  # what did not happen where a fault is never injected, by its hook
    "loader": "no DataLoader was created",
    "batch": "no training batch was drawn",
    "held_out_batch": "no evaluation batch was drawn",
    "sample": "no sample was read",
    "output": "no forward pass ended",
    "gradients": "no backward pass ended",
    "update": "no optimizer made an update",
    "saving": "nothing was saved",
    "saved": "no weights were saved",
    "collective": "no collective was called",
}
_WORSE = 0.02  # of the control's metric, which a survivor may be: of a fraction such as an accuracy, two points


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One fault of one trial."""

    training: str
    fault: str
    policy: str | None
    seed: int
    at: int | None
    injected: bool
    why_not: str = ""
    seen: str | None = None  # the finding
    after_steps: int | None = None
    after_seconds: float | None = None  # None: in the check-up after the end
    cause: str | None = None  # the first that was named
    cause_right: bool = False
    rank_right: bool | None = None  # whether the finding names the rank; None where the fault is on no rank of its own
    actions: tuple[str, ...] = ()
    survived: bool | None = None  # None: it was not injected
    why_not_survived: str = ""
    metric_name: str = ""
    metric: float | None = None
    control_metric: float | None = None
    lost_steps: int | None = None
    lost_seconds: float | None = None
    unexpected: tuple[str, ...] = ()  # findings above info that this fault does not explain
    to_see: bool = True  # whether a watcher can see it
    to_explain: bool = False  # whether a cause was to be named: not for info
    to_survive: bool = False  # whether this policy can survive it
    unseen: str = ""  # why nobody can see it
    run: str | None = None  # the folder of the run, where it was kept
    first_of_run: bool = True  # of several faults in one run, the first: what the run lost is counted there

    @property
    def missed(self) -> bool:
        """It was there to be seen, and was not; or it is harmless, and something was raised."""
        return self.injected and self.to_see and self.seen is None

    @property
    def lost(self) -> bool:
        """It could have been survived, and was not."""
        return self.injected and self.to_survive and not self.survived

    @property
    def restarted(self) -> bool:
        """It came to its end, but began from the start: nothing of the work before the fault was kept."""
        return self.why_not_survived.startswith(RESTARTED)

    @property
    def alarmed(self) -> bool:
        """It is harmless, and something was raised all the same."""
        return self.injected and not self.to_see and not self.unseen and self.policy is not None and bool(self.unexpected)

    @property
    def good(self) -> bool:
        """Nothing of it is missing."""
        return not (self.missed or self.lost or self.alarmed)

    @property
    def worth_a_look(self) -> bool:
        """Something is missing, or the cause is wrong: its run is kept."""
        return not self.good or (self.injected and self.to_explain and not self.cause_right)

    def as_row(self) -> dict[str, Any]:
        """The score as `--json` gives it."""
        return {name: plain(value) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlScore:
    """A run without a fault: what it raised all the same."""

    training: str
    policy: str | None
    seed: int
    false_alarms: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    steps: int = 0
    seconds: float = 0.0
    metric_name: str = ""
    metric: float | None = None
    run: str | None = None

    def as_row(self) -> dict[str, Any]:
        """The control as `--json` gives it."""
        return {name: plain(value) for name, value in asdict(self).items()}


def score_control(trial: Trial) -> ControlScore:
    """Findings above `info` are false alarms."""
    return ControlScore(
        training=trial.training.name,
        policy=trial.policy,
        seed=trial.seed,
        false_alarms=_codes(raised for raised in trial.outcome.raised if raised.severity != "info"),
        actions=_actions(trial, 0.0),
        steps=trial.steps,
        seconds=round(trial.seconds, 2),
        metric_name=trial.metric_name,
        metric=trial.metric,
        run=_kept(trial),
    )


def score(trial: Trial, control: Trial, *, noise: float = 0.0) -> Score:
    """The score of a trial's first fault. `noise` is how much the metric of the controls differs by chance."""
    return score_each(trial, control, noise=noise)[0]


def score_each(trial: Trial, control: Trial, *, noise: float = 0.0) -> list[Score]:
    """The scores of all faults of a trial; how it ended is the same for each."""
    expected = [find(fault.code, fault.source).expected for fault in trial.faults]
    return [_score(number, trial, control, expected, noise) for number in range(len(trial.faults))]


def _score(number: int, trial: Trial, control: Trial, every: list[Expected], noise: float) -> Score:
    planned, expected = trial.faults[number], every[number]
    note, why_not = _injection(trial, number, planned)
    same: dict[str, Any] = {
        "training": trial.training.name,
        "fault": planned.code,
        "policy": trial.policy,
        "seed": trial.seed,
        "to_see": bool(expected.findings) and not expected.unseen and trial.policy is not None,
        "to_survive": expected.survivable and trial.policy == "heal",
        "unseen": expected.unseen,
        "metric_name": control.metric_name or trial.metric_name,
        "control_metric": control.metric,
        "run": _kept(trial),
        "first_of_run": number == 0,
    }
    if note is None:
        return Score(at=planned.step, injected=False, why_not=why_not, **same)
    until = _until(trial, number, every)
    raised = [
        alarm for alarm in trial.outcome.raised if _after(alarm, note) and not (alarm.time is not None and alarm.time >= until)
    ]
    counting = [alarm for alarm in raised if alarm.severity != "info" or expected.info_is_enough]
    seen = next((alarm for alarm in counting if alarm.code in expected.findings), None)
    trouble = why_not_survived(trial, control, noise)
    lasting = find(planned.code, planned.source).lasting
    if expected.by_loss and seen is None and not trouble and is_harmless(trial, int(note["step"]), lasting=lasting):
        same |= {"to_see": False, "unseen": NO_HARM}
    return Score(
        at=int(note["step"]),
        injected=True,
        **(_sighting(seen, note, expected) if seen is not None else {}),
        rank_right=_names(seen, find(planned.code, planned.source).rank, expected),
        actions=_actions(trial, float(note["time"]), _next(trial, number)),
        survived=not trouble,
        why_not_survived=trouble,
        metric=_comparable(trial, control),
        lost_steps=_lost_steps(trial, control),
        lost_seconds=round(max(0.0, trial.seconds - control.seconds), 2),
        unexpected=_codes(
            alarm for alarm in raised if alarm.severity != "info" and not any(alarm.code in fault.findings for fault in every)
        ),
        **same,
    )


def is_harmless(trial: Trial, step: int, *, lasting: bool = False) -> bool:
    """Whether no loss after a fault rose by a hundredth of what had been learned: then there was nothing to see."""
    rise = rise_of_loss(trial.run, step, lasting=lasting)
    return rise is not None and rise < _RISE


def _injection(trial: Trial, number: int, planned: Planned) -> tuple[dict[str, Any] | None, str]:
    """The note of its injection; or why it was not injected."""
    mine = [note for note in trial.notes if note.get("number") == number]
    injected, nowhere = None, ""
    for note in mine:
        if note["event"] == "cannot-happen":
            return None, str(note.get("why") or "nothing to inject into")
        if note["event"] == "not-here":
            injected, nowhere = None, str(note["why"])
        elif note["event"] == "injected":
            injected = injected or note
    if injected is not None or nowhere:
        return injected, "" if injected is not None else nowhere
    if trial.ended:
        return None, f"the run {trial.ended}"
    if trial.steps >= planned.step and trial.exit_code == 0:
        places = sorted(hooks_of(find(planned.code, planned.source)()))
        return None, f"after step {planned.step:,} {' and '.join(_ABSENT[place] for place in places)}"
    code = f" with exit code {trial.exit_code}" if trial.exit_code else ""
    return None, f"the run ended{code} after {trial.steps:,} steps"


def _until(trial: Trial, number: int, every: list[Expected]) -> float:
    """When the next fault of the same run is injected that would raise the same."""
    later = [note for note in trial.notes if note.get("event") == "injected" and int(note["number"]) > number]
    alike = [note for note in later if set(every[int(note["number"])].findings) & set(every[number].findings)]
    return min((float(note["time"]) for note in alike), default=math.inf)


def _after(raised: Raised, note: dict[str, Any]) -> bool:
    """Whether it was raised after the fault was injected. A restart counts its steps from where it resumed."""
    if raised.time is not None:
        return raised.time >= float(note["time"]) - 0.01
    return raised.step is None or raised.step >= int(note["step"]) - 1


def _sighting(seen: Raised, note: dict[str, Any], expected: Expected) -> dict[str, Any]:
    steps = None if seen.step is None else max(0, seen.step - int(note["step"]))
    return {
        "seen": seen.code,
        "after_steps": steps,
        "after_seconds": None if seen.time is None else round(max(0.0, seen.time - float(note["time"])), 2),
        "cause": seen.cause,
        "cause_right": seen.cause in expected.causes if expected.causes else True,
        "to_explain": bool(expected.causes) and (seen.severity != "info" or seen.cause is not None),
    }


def _names(seen: Raised | None, rank: int | None, expected: Expected) -> bool | None:
    ranks = expected.ranks or (() if rank is None else (rank,))
    return bool(set(ranks) & set(seen.ranks)) if ranks and seen is not None else None if not ranks else False


def why_not_survived(trial: Trial, control: Trial, noise: float = 0.0) -> str:
    """In words; nothing if it ended as the control did: code 0, as many steps, as good, and none of the work thrown away."""
    if trial.ended:
        return f"it {trial.ended}"
    if trial.exit_code != 0:
        return f"exit {trial.exit_code}"
    if trial.steps < control.steps:
        return f"{trial.steps:,} of {control.steps:,} steps"
    if trial.outcome.began_again:
        return f"{RESTARTED}: {trial.outcome.began_again:,} steps were repeated"
    if control.metric is None or not math.isfinite(control.metric):
        return ""
    name, metric = control.metric_name, _comparable(trial, control)
    if metric is None or not math.isfinite(metric):
        return f"{name} is {'unknown' if metric is None else metric}"
    worse = control.metric - metric if control.metric_is_higher else metric - control.metric
    return f"{name} {metric:.4g}, not {control.metric:.4g}" if worse > _allowed(control, noise) else ""


def _comparable(trial: Trial, control: Trial) -> float | None:
    """The trial's metric, if it is the same as the control's: a run that ends early may have another to show."""
    return trial.metric if trial.metric_name == control.metric_name or control.metric is None else None


def _allowed(control: Trial, noise: float) -> float:
    """How much worse a survivor may be: two points of a share, two percent of anything else, or what chance makes."""
    assert control.metric is not None
    share = control.metric_is_higher and 0 <= control.metric <= 1
    return max(_WORSE if share else _WORSE * abs(control.metric), 2 * noise, 2 * control.metric_noise)


def spread(controls: Iterable[Trial]) -> float:
    """How much the metric of controls differs between seeds, as a deviation."""
    values = [control.metric for control in controls if control.metric is not None and math.isfinite(control.metric)]
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _lost_steps(trial: Trial, control: Trial) -> int:
    """Updates skipped or undone, steps made twice, and steps that were never made."""
    twice = max(0, trial.outcome.made - control.outcome.made)
    return trial.outcome.undone + twice + max(0, control.steps - trial.steps)


def _next(trial: Trial, number: int) -> float:
    """When the next fault of the same run is injected."""
    later = [note for note in trial.notes if note.get("event") == "injected" and int(note["number"]) > number]
    return min((float(note["time"]) for note in later), default=math.inf)


def _actions(trial: Trial, since: float, until: float = math.inf) -> tuple[str, ...]:
    """What Holdfast did, in the order of its first times."""
    counts: dict[str, int] = {}
    for action in trial.outcome.done:
        if since - 0.01 <= (action.event.time or 0.0) < until:
            label = action.event.code if action.event.state == "done" else f"{action.event.code} {action.event.state}".strip()
            counts[label] = counts.get(label, 0) + action.times
    return tuple(label if times == 1 else f"{label} x{times}" for label, times in counts.items())


def _codes(raised: Iterable[Raised]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(alarm.code for alarm in raised))


def _kept(trial: Trial) -> str | None:
    return None if trial.run is None else str(trial.run.path)
