"""Whether a training hangs: how long each rank has been silent, against what is usual for what it does. Pure.

    silent too long?    no -> nothing      the larger of 10 s and 5 x the longest recent step;
                                           first steps, compiling, saving, loading and evaluating have longer limits
         | yes                             an evaluation that waits for its loader: 5 x the longest evaluation so far
    what do the stacks say?                a debugger, a person's pause, a stopped process -> wait
                                           compiling, saving, evaluating without a loader to wait for -> the longer limit
                                           else: hang, loader-stall or collective-stall

Seconds are those in which the watcher was awake and the process was not stopped, so that a suspended machine is no hang.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CODES = ("hang", "loader-stall", "collective-stall")
EXCUSED = frozenset({"evaluating", "saving", "loading", "compiling", "catching-up", "ending"})  # longer than a step
ON_DISK = "D"  # the state of a process that waits for a disk or a network file system, and cannot even be killed
STOPPED = frozenset({"T", "t"})
_FIRST_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds. `floor` is what a user sets; the others follow from it unless they are given."""

    floor: float = 10.0
    times: float = 5.0  # the longest recent step
    patient: float = 0.0  # of the first steps, and of what announces itself; 60 times the floor
    on_disk: float = 0.0  # while a process waits for a disk; 60 times the floor

    @property
    def patience(self) -> float:
        """For first steps, evaluation, saving, loading and compiling."""
        return self.patient or 60.0 * self.floor

    @property
    def disk(self) -> float:
        """While a process of the run waits for a disk."""
        return self.on_disk or 60.0 * self.floor


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How one rank stands: what it does, and for how long nothing was seen of it."""

    rank: int
    silent: float
    phase: str = "training"
    step: int | None = None  # the newest that is done
    steps: int = 0  # done by this process
    longest_step: float | None = None
    longest_evaluation: float | None = None
    state: str = "S"  # of the process, as the system says it


@dataclass(frozen=True, slots=True)
class Suspect:
    """A rank that has been silent for longer than its limit; `early`, if it has a longer one unless it waits for a loader."""

    standing: Standing
    limit: float
    early: bool = False


def limit_of(standing: Standing, limits: Limits) -> float:
    """For how long a rank may be silent."""
    usual = limits.times * (standing.longest_step or 0.0)
    if standing.phase == "paused":
        return math.inf
    if standing.phase == "evaluating":
        return max(limits.patience, limits.times * (standing.longest_evaluation or 0.0))
    if standing.phase in EXCUSED or standing.phase == "starting" or standing.steps < _FIRST_STEPS:
        return max(limits.patience, usual)
    if standing.state == ON_DISK:
        return max(limits.disk, usual)
    return max(limits.floor, usual)


def suspects(standings: Sequence[Standing], limits: Limits) -> list[Suspect]:
    """The ranks that are silent for too long, the longest first.

    While one rank evaluates, saves or compiles within its limit, the others may wait for it. A stopped process is asleep.
    """
    if any(standing.state in STOPPED for standing in standings):
        return []
    suspected = [Suspect(standing, limit) for standing in standings if standing.silent > (limit := limit_of(standing, limits))]
    if any(standing.phase in (*EXCUSED, "paused") and standing.silent <= limit_of(standing, limits) for standing in standings):
        suspected = [
            Suspect(standing, limit, early=True)
            for standing in standings
            if standing.silent > (limit := _longer_than_ever(standing, limits))
        ]
    return sorted(suspected, key=lambda one: -one.standing.silent)


def _longer_than_ever(standing: Standing, limits: Limits) -> float:
    """Seconds without a batch after which an evaluation is odd: it was all over long before that the last times."""
    if standing.phase != "evaluating" or not standing.longest_evaluation:
        return math.inf
    return max(limits.floor, limits.times * standing.longest_evaluation)


def stands(suspect: Suspect, verdict: str, limits: Limits, *, on_disk: bool = False) -> bool:
    """Whether the suspicion stands, by what the stacks say; `on_disk` if some process of the run waits for a disk."""
    silent = suspect.standing.silent
    if verdict in ("moving", "paused", "stopped") or (suspect.early and verdict != "loader-stall"):
        return False
    if verdict in ("busy", "idle") and silent <= limits.patience:
        return False
    return not on_disk or silent > limits.disk


def code_of(verdict: str) -> str:
    """The finding's code; a stack that says nothing leaves a plain hang."""
    return verdict if verdict in CODES else "hang"


def awake(passed: float, tick: float) -> float:
    """How much of the time since the last look counts: one that comes far too late was asleep itself."""
    return passed if passed <= 4.0 * tick + 1.0 else tick
