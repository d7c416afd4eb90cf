"""What a check answers: a verdict, the evidence for it, and how to fix it."""

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
    """How to fix it, in words, and the commands. Only the user runs them."""

    text: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of one check. `message` is one sentence; evidence is numbers and words, bytes as bytes, seconds as seconds."""

    level: str
    message: str
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


def ok(message: str, **evidence: Any) -> Verdict:
    """Nothing is wrong."""
    return Verdict(OK, message, evidence)


def note(message: str, *fixes: Fix, **evidence: Any) -> Verdict:
    """Nothing is wrong, and the user will want to know."""
    return Verdict(NOTE, message, evidence, fixes)


def warning(message: str, *fixes: Fix, **evidence: Any) -> Verdict:
    """A run works, but worse than it could, or fails when it grows."""
    return Verdict(WARNING, message, evidence, fixes)


def problem(message: str, *fixes: Fix, **evidence: Any) -> Verdict:
    """A run will fail, or will not use what is here."""
    return Verdict(PROBLEM, message, evidence, fixes)


def skipped(message: str, **evidence: Any) -> Verdict:
    """The question does not arise here."""
    return Verdict(SKIPPED, message, evidence)


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """Several answers as one: as bad as the worst, which alone is said if it is worse than a note."""
    ordered = sorted(verdicts, key=lambda verdict: -LEVELS.index(verdict.level))
    worst = ordered[0].level
    reported = [verdict for verdict in ordered if verdict.level == worst or verdict.level in (WARNING, PROBLEM)]
    evidence = {key: value for verdict in reversed(ordered) for key, value in verdict.evidence.items()}
    return Verdict(
        worst,
        "; ".join(verdict.message for verdict in reported),
        evidence,
        tuple(fix for verdict in ordered for fix in verdict.fixes),
    )
