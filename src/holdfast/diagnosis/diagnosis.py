"""A diagnosis: findings that belong together, and the causes that explain them, most likely first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.detectors.finding import Finding, plain
from holdfast.diagnosis.causes import CAUSES, Cause, Fix
from holdfast.diagnosis.known_texts import KNOWN_TEXTS
from holdfast.diagnosis.run_signs import signs_of_findings

_RECENT_STEPS = 200
_SAID_BY_TEXT = (  # pages of errors whose text says what is wrong: other causes of such an error would contradict it
    *("broken-install", "checkpoint-incompatible", "compile-trouble", "cuda-build-mismatch", "distributed-setup", "graph-error"),
    *("loop-mistake", "shape-mismatch"),
)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong and why. `evidence` holds what the findings say, and what the run can be repaired with."""

    findings: tuple[Finding, ...]
    causes: tuple[str, ...] = ()
    step: int = field(kw_only=True)
    evidence: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    @property
    def codes(self) -> frozenset[str]:
        """The codes of its findings."""
        return frozenset(finding.code for finding in self.findings)

    @property
    def onset(self) -> int:
        """The first step of the trouble: the earliest onset of a finding, or the change that led to it."""
        return min([finding.onset for finding in self.findings] + [int(self.evidence.get("lr_jumped_at", self.step))])

    def finding(self, *codes: str) -> Finding | None:
        """The first finding with one of these codes."""
        return next((finding for finding in self.findings if finding.code in codes), None)

    def as_row(self) -> dict[str, Any]:
        """The diagnosis as the journal holds it."""
        evidence = {name: plain(value) for name, value in self.evidence.items()}
        codes = [finding.code for finding in self.findings]
        return {"step": self.step, "onset": self.onset, "findings": codes, "causes": list(self.causes), "evidence": evidence}


def diagnose(findings: Sequence[Finding], *, around: Iterable[Mapping[str, Any]] = (), **signs_known: Any) -> Diagnosis:
    """Rank the causes of some findings.

    `around` are journal rows of the run that may bear on it (what reflexes saw, changes that were made); `known` is more
    evidence, such as the snapshots that can be gone back to.
    """
    evidence: dict[str, Any] = {}
    for finding in reversed(findings):
        evidence |= finding.evidence
    step = max(finding.step for finding in findings)
    onset = min(finding.onset for finding in findings)
    present = signs(findings, evidence, around, onset)
    codes = {finding.code for finding in findings}
    scored = [(_score(cause, codes, present), cause.code) for cause in causes_of(findings)]
    ranked = sorted((one for one in scored if one[0] > 0), key=lambda one: -one[0])
    evidence |= {"exploded": "norm-exploded" in present, **signs_known}
    return Diagnosis(tuple(findings), tuple(code for _, code in ranked), step=step, evidence=evidence)


def causes_of(findings: Sequence[Finding]) -> tuple[Cause, ...]:
    """All causes that may be meant; where the text of an error is known, what it means instead of the general causes."""
    names = {finding.evidence.get("known_text"): finding.code for finding in findings if finding.code in _SAID_BY_TEXT}
    texts = [text for text in KNOWN_TEXTS if names.get(text.name) == text.page]
    pages = {text.page for text in texts}
    said = [
        Cause(code=text.name, seen_by=(text.page,), because=text.means, likely=0.9, fixes=(Fix(text.fix.rstrip(".")),))
        for text in texts
    ]
    return (*said, *(cause for cause in CAUSES if not pages.issuperset(cause.seen_by)))


def signs(
    findings: Sequence[Finding], evidence: Mapping[str, Any], around: Iterable[Mapping[str, Any]], onset: int
) -> frozenset[str]:
    """What supports one cause or another, as words that `causes` uses."""
    codes, last = {finding.code for finding in findings}, max(finding.step for finding in findings)
    around = list(around)  # none for a log of somebody else's, whose first row may be that of many updates
    by_name = {
        "lr-jumped": "lr_jumped_at" in evidence,
        "norm-exploded": "gradient-explosion" in codes,
        "recovered": bool(evidence.get("recovered")),
        "scaler": "scaler-collapse" in codes,
        "before-any-update": onset == 0 and any(code.startswith("non-finite") for code in codes) and bool(around),
        "input-non-finite": "non-finite-input" in codes,
        "stays-bad": "non-finite-weights" in codes,
        "clipped": evidence.get("clip_norm") is not None,
        "gradients-not-zeroed": any(code == "gradients-not-zeroed" for code in (*codes, *(row.get("code") for row in around))),
        "not-clipped": "gradient-explosion" in codes and evidence.get("clip_norm") is None,
    }
    by_name |= dict.fromkeys(signs_of_findings(findings), True)
    suspects = [str(name) for name in evidence.get("suspects") or ()]  # of a resume
    by_name |= {f"{name}-suspect": True for name in suspects} | {f"{name}-most-suspect": True for name in suspects[:1]}
    for row in around:
        near = abs(int(row.get("step") or 0) - onset) <= _RECENT_STEPS
        if row.get("code") == "gradient-explosion" and onset - _RECENT_STEPS <= int(row.get("step") or 0) < onset:
            by_name["norm-exploded"] = True  # before the loss rose; what comes with the rise follows from it
        if row.get("kind") == "change" and near and row.get("do", "set") in ("set", "undo"):
            by_name["change-before"] = True
        bad_input = str((row.get("evidence") or {}).get("input") or "unknown") not in ("finite", "unknown")
        if bad_input and onset <= int(row.get("step") or 0) <= last:  # one from before was skipped; a later one is its own story
            by_name["input-non-finite"] = True
    return frozenset(name for name, present in by_name.items() if present)


def _score(cause: Cause, codes: set[str], present: frozenset[str]) -> float:
    if not codes & set(cause.seen_by) or not cause.is_possible(present):
        return 0.0
    return cause.likely + 0.4 * len(present & set(cause.signs))
