"""Rank what findings may come from: each cause with its confidence, the signs that support it, and what to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from holdfast.detectors.finding import Finding
from holdfast.diagnosis.causes import Cause, Fix
from holdfast.diagnosis.confidence import probability, stated
from holdfast.diagnosis.curve_signs import signs_of
from holdfast.diagnosis.diagnosis import causes_of, signs
from holdfast.diagnosis.journal_signs import signs_of_journal
from holdfast.diagnosis.run_signs import signs_of_run
from holdfast.signals.curves import Curves

if TYPE_CHECKING:
    from holdfast.diagnosis.earlier import Earlier

_FOR, _AGAINST = 0.25, 0.3  # how much one sign moves the confidence
_MORE = 0.05  # for each further finding that it explains
_LEAST = 0.15
_AT_MOST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A cause, how sure it is, and what supports it."""

    cause: Cause
    score: float  # by which causes are ranked
    first: bool = False  # of those that explain the same findings
    because: tuple[str, ...]
    findings: tuple[str, ...]
    name: str | None = None  # of the run, where commands can be given for it
    live: bool = False  # whether it can be asked to change something
    back: tuple[Fix, ...] = ()  # to the settings of an earlier run that was good
    present: frozenset[str] = frozenset()  # the signs of the run

    @property
    def confidence(self) -> float:
        """How often such a cause was right where the truth is known."""
        return probability(self.cause.code, self.score, first=self.first)

    @property
    def stated(self) -> str:
        """The same in a word: `likely`, `possible`, or nothing, and then it is not named."""
        return stated(self.cause.code, self.score, first=self.first)

    @property
    def fixes(self) -> tuple[Fix, ...]:
        """What to change; nothing that the run does already."""
        return (*self.back, *(fix for fix in self.cause.fixes if fix.applies(self.present)))

    def command_of(self, fix: Fix) -> str | None:
        """The command that makes this change to the run, where there is one."""
        return fix.command_for(self.name, live=self.live)

    def as_row(self) -> dict[str, Any]:
        """As `--json` gives it."""
        return {
            "cause": self.cause.code,
            "confidence": round(self.confidence, 2),
            "because": " ".join((self.cause.because, *(f"{words[:1].upper()}{words[1:]}." for words in self.because))),
            "findings": list(self.findings),
            "fixes": [self._fix_row(fix) for fix in self.fixes],
        }

    def _fix_row(self, fix: Fix) -> dict[str, Any]:
        change = {"setting": fix.setting, "op": fix.op, "value": fix.value}
        return {"text": fix.text, **change, "command": self.command_of(fix)}


def rank(
    findings: Sequence[Finding],
    curves: Curves,
    *,
    around: Sequence[Mapping[str, Any]] = (),
    name: str | None = None,
    live: bool = False,
    earlier: Earlier | None = None,
) -> list[Ranked]:
    """The likely causes of findings that belong together, most likely first."""
    evidence: dict[str, Any] = {}
    for finding in reversed(findings):
        evidence |= finding.evidence
    onset = min(finding.onset for finding in findings)
    of_journal = signs(findings, evidence, around, onset) - {"recovered"}  # that the curves say better
    first_nan = min((finding.onset for finding in findings if finding.code.startswith("non-finite")), default=onset)
    of_run = {**signs_of_run(curves, findings), **signs_of_journal(around, first_nan)}
    present = {**dict.fromkeys(of_journal, ""), **signs_of(curves, findings), **of_run}
    since_good = {} if earlier is None else earlier.signs()
    present |= since_good
    if "lr-jumped" in present:  # what came of that explains nothing
        present = {sign: words for sign, words in present.items() if sign not in ("explained", "weights-unsound")}
    if "updates-usual" in present and "lr-jumped" not in present:  # 1 is no huge rate for Adadelta
        present.pop("lr-huge", None)
    if present.keys() & {"lr-jumped", "lr-dropped", "lr-below-good"}:  # updates were usual only before
        present = {sign: words for sign, words in present.items() if sign not in ("updates-usual", "updates-large-enough")}
    ranked = [one for cause in causes_of(findings) if (one := _judged(cause, findings, present, name)) is not None]
    if earlier is not None:
        ranked = [replace(one, back=earlier.fixes()) if set(one.cause.signs) & since_good.keys() else one for one in ranked]
    ranked = sorted(ranked, key=lambda one: -one.score)[:_AT_MOST]
    return [replace(one, live=live, first=place == 0) for place, one in enumerate(ranked)]


def _judged(cause: Cause, findings: Sequence[Finding], present: Mapping[str, str], name: str | None) -> Ranked | None:
    """A cause in the light of the signs; None if it explains nothing here, or is ruled out, or hardly likely."""
    explains = tuple(finding.code for finding in findings if finding.code in cause.seen_by)
    if not explains or not cause.is_possible(present):
        return None
    speaks_for = [sign for sign in cause.signs if sign in present]
    against = [sign for sign in cause.against if sign in present]
    score = cause.likely + _FOR * len(speaks_for) - _AGAINST * len(against) + _MORE * (len(explains) - 1)
    if score < _LEAST:
        return None
    because = tuple(words for sign in speaks_for if (words := present[sign]))
    return Ranked(cause=cause, score=score, because=because, findings=explains, name=name, present=frozenset(present))
