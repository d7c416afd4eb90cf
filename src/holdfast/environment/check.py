"""What a check answers: a verdict, the evidence for it, and what would mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.environment.machine import Machine

OK, NOTE, WARNING, PROBLEM, SKIPPED = "ok", "note", "warning", "problem", "skipped"
LEVELS = (SKIPPED, OK, NOTE, WARNING, PROBLEM)  # from nothing to say to a run that will fail


@dataclass(frozen=True, slots=True)
class Fix:
    """What would mend it, in words, and the commands that do it. Nobody runs them but the user."""

    words: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of one check. `says` is one sentence; evidence is numbers and words, bytes as bytes, seconds as seconds."""

    level: str
    says: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    fixes: tuple[Fix, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question to the machine. A `heavy` one starts processes with torch in them, and they take turns.

    One that `waits` (for a clock, for a network) computes nothing and is asked beside all others. A `long` one takes more than a
    few seconds, and is asked by its name or with all of them.
    """

    name: str
    asks: str
    ask: Callable[[Machine], Verdict]
    seconds: float = 10.0
    heavy: bool = False
    waits: bool = False
    long: bool = False


def ok(says: str, **evidence: Any) -> Verdict:
    """Nothing is wrong."""
    return Verdict(OK, says, evidence)


def note(says: str, *fixes: Fix, **evidence: Any) -> Verdict:
    """Nothing is wrong, and the user will want to know."""
    return Verdict(NOTE, says, evidence, fixes)


def warning(says: str, *fixes: Fix, **evidence: Any) -> Verdict:
    """A run works, but worse than it could, or fails when it grows."""
    return Verdict(WARNING, says, evidence, fixes)


def problem(says: str, *fixes: Fix, **evidence: Any) -> Verdict:
    """A run will fail, or will not use what is here."""
    return Verdict(PROBLEM, says, evidence, fixes)


def skipped(says: str, **evidence: Any) -> Verdict:
    """The question does not arise here."""
    return Verdict(SKIPPED, says, evidence)


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """Several answers as one: as bad as the worst, which alone is said if it is worse than a note."""
    ordered = sorted(verdicts, key=lambda one: -LEVELS.index(one.level))
    worst = ordered[0].level
    told = [one for one in ordered if one.level == worst or one.level in (WARNING, PROBLEM)]
    evidence = {key: value for one in reversed(ordered) for key, value in one.evidence.items()}
    return Verdict(worst, "; ".join(one.says for one in told), evidence, tuple(fix for one in ordered for fix in one.fixes))
