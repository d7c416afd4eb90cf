"""A check-up of one run: what its curves and its journal show, why, and what to change; and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.detectors.curves.order import TOO_SHORT, look_at
from holdfast.detectors.finding import Finding, plain
from holdfast.diagnosis.done import Done, all_done, done_about
from holdfast.diagnosis.ranking import Ranked, rank
from holdfast.signals.curves import Curves

if TYPE_CHECKING:
    from holdfast.diagnosis.earlier import Earlier

HEALTHY, WATCH, ILL, SHORT = "healthy", "watch", "ill", "too-short"
_SEVERITIES = ("info", "warning", "critical")
_LAST = 8  # points, of which most are finite in a training that continues; a bad batch may be among them
_OF_MACHINE = frozenset(  # what the machine does, and not what is learned
    {
        *("slow-loading", "slow-step", "low-gpu-utilisation", "computing-on-cpu", "recompilation", "straggler"),
        *("host-memory-growth", "gpu-memory-growth", "tracker-unreachable"),
    }
)
_TOGETHER_STEPS, _TOGETHER_SHARE = 200, 0.05  # findings that begin so close to each other are one thing


@dataclass(frozen=True, slots=True)
class Episode:
    """Findings that began together, and their causes, most likely first."""

    findings: tuple[Finding, ...]
    considered: tuple[Ranked, ...] = ()  # all that may explain them
    done: tuple[Done, ...] = ()  # what Holdfast did about it

    @property
    def diagnoses(self) -> tuple[Ranked, ...]:
        """The causes that are sure enough to be named; of an info, the first only."""
        return tuple(one for one in self.considered[: None if self.severity else 1] if one.stated)

    @property
    def severity(self) -> int:
        """The worst of its findings: 0 info, 1 a warning, 2 critical."""
        return max(_SEVERITIES.index(finding.severity) for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that was changed while the run lived: `lr 0.01 → 0.005`."""

    step: int
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """What is known about one run: its episodes, the worst first."""

    curves: Curves
    episodes: tuple[Episode, ...] = ()
    changes: tuple[Change, ...] = ()  # made from outside

    @property
    def findings(self) -> list[Finding]:
        """All findings, the worst first."""
        every = [finding for episode in self.episodes for finding in episode.findings]
        return sorted(every, key=lambda finding: -_SEVERITIES.index(finding.severity))

    @property
    def verdict(self) -> str:
        """The worst of the findings, in a word."""
        worst = max((episode.severity for episode in self.episodes), default=0)
        if worst == 0:
            return SHORT if self.curves.points < TOO_SHORT else HEALTHY
        return ILL if worst == 2 else WATCH

    @property
    def repaired(self) -> bool:
        """Whether something was done about all that was wrong, and the loss has been finite since."""
        wrong = [episode for episode in self.episodes if episode.severity > 0]
        loss = self.curves.train_loss
        acted = all(any(one.event.state == "done" for one in episode.done) for episode in wrong)
        last = [episode.done[-1].event for episode in wrong if episode.done]
        acted &= not any(event.state == "refused" or event.code == "stop" for event in last)  # then it was given up
        return bool(wrong) and acted and loss is not None and bool(np.isfinite(loss.values[-_LAST:]).sum() > _LAST // 2)

    def as_row(self) -> dict[str, Any]:
        """The check-up as `--json` gives it."""
        diagnoses = [diagnosis.as_row() for episode in self.episodes for diagnosis in episode.diagnoses]
        actions = [done.as_row() for episode in self.episodes for done in episode.done]
        return {
            "name": self.curves.name,
            "source": self.curves.source,
            "steps": self.curves.num_steps,
            "verdict": self.verdict,
            "findings": [_row(finding) for finding in self.findings],
            "diagnoses": diagnoses,
            **({"actions": actions} if actions else {}),
        }


def _row(finding: Finding) -> dict[str, Any]:
    place = {"step": finding.step, "epoch": plain(finding.epoch), "series": finding.series}
    evidence = {name: plain(value) for name, value in finding.evidence.items()}
    return {"code": finding.code, "severity": finding.severity, **place, "evidence": evidence}


def check_up(
    curves: Curves,
    *,
    seen: Sequence[Finding] = (),
    around: Iterable[Mapping[str, Any]] = (),
    name: str | None = None,
    live: bool = False,
    earlier: Callable[[], Earlier | None] | None = None,
) -> Checkup:
    """Look at the curves, add what was `seen` while the run lived, and rank causes. `name` is how commands call the run,
    which can be changed if it is `live`.

    `earlier` finds the last good run to compare with; it is asked only if something is wrong.
    """
    around, done = list(around), all_done(around)
    codes = {finding.code for finding in seen}
    findings = [*_once(seen), *(_of_ours(finding, curves) for finding in look_at(curves) if finding.code not in codes)]
    findings = _with_dropped_lr(findings, curves.steps)
    wrong = any(finding.severity != "info" for finding in findings)
    before = earlier() if earlier is not None and wrong else None
    episodes = []
    for group in _together(findings, curves.steps):
        reported = [finding for finding in group if finding.severity != "info"]
        causes = rank(reported or group, curves, around=around, name=name, live=live, earlier=before)
        acted = done_about({one.code for one in group}, min(one.onset for one in group), done)
        episodes.append(Episode(tuple(sorted(group, key=lambda one: -_SEVERITIES.index(one.severity))), tuple(causes), acted))
    ordered = sorted(episodes, key=lambda episode: -episode.severity)
    return Checkup(curves=curves, episodes=tuple(ordered), changes=tuple(_changes(around)))


def _changes(rows: Iterable[Mapping[str, Any]]) -> Iterator[Change]:
    """What `set` and `undo` changed; of several ranks once."""
    seen: set[object] = set()
    for row in rows:
        if row.get("kind") == "change" and row.get("do") in ("set", "undo") and row.get("number") not in seen:
            seen.add(row.get("number"))
            setting, before, after = str(row.get("what") or "a setting"), row.get("from"), row.get("to")
            numeric = isinstance(before, (int, float)) and isinstance(after, (int, float))
            yield Change(int(row.get("step") or 0), f"{setting.split(' ')[0]} {before:g} → {after:g}" if numeric else setting)


def _of_ours(finding: Finding, curves: Curves) -> Finding:
    """A rise that stays, seen only in the curve of a Holdfast run, is info.

    Its steps were judged one by one, with their gradients: a step that did harm was told then. What is left is harder data.
    """
    harmless = curves.source == "holdfast" and finding.code == "loss-spike" and finding.severity == "warning"
    return replace(finding, severity="info") if harmless else finding


def _with_dropped_lr(findings: list[Finding], steps: int) -> list[Finding]:
    """A training that had not learned when its learning rate fell to almost nothing could not learn in the half that followed."""
    dropped = next((one for one in findings if one.code == "loss-plateau" and "lr_before" in one.evidence), None)
    if dropped is None or 2 * dropped.onset > steps:
        return findings
    rates = {name: dropped.evidence[name] for name in ("lr_before", "lr")}
    return [replace(one, evidence={**one.evidence, **rates}) if one.code == "not-learning" else one for one in findings]


def _once(findings: Iterable[Finding]) -> list[Finding]:
    """Each code once: the worst, and of these the first, with what was learned later about the same."""
    chosen: dict[str, Finding] = {}
    for finding in findings:
        earlier = chosen.get(finding.code)
        if earlier is None or _SEVERITIES.index(finding.severity) > _SEVERITIES.index(earlier.severity):
            chosen[finding.code] = finding
        elif finding.severity == earlier.severity:
            chosen[finding.code] = replace(earlier, evidence={**finding.evidence, **earlier.evidence})
    return list(chosen.values())


def _together(findings: Iterable[Finding], length: int) -> list[list[Finding]]:
    """Findings by when they began; those of the machine apart, and so an error of the script: it has a traceback of its own.
    An info stays with what happened beside it, else it is alone.
    """
    findings = list(findings)
    raised = [[finding] for finding in findings if finding.code == "script-error"]
    findings = [finding for finding in findings if finding.code != "script-error"]
    groups: list[list[Finding]] = []
    close = max(_TOGETHER_SHARE * length, min(_TOGETHER_STEPS, 0.25 * length))
    for finding in sorted(findings, key=lambda one: (one.code in _OF_MACHINE, one.onset)):
        last = groups[-1][0] if groups else finding
        if groups and finding.onset - last.onset <= close and (finding.code in _OF_MACHINE) == (last.code in _OF_MACHINE):
            groups[-1].append(finding)
        else:
            groups.append([finding])
    alone = [[one] for group in groups for one in group if all(other.severity == "info" for other in group)]
    return [group for group in groups if any(one.severity != "info" for one in group)] + raised + alone
