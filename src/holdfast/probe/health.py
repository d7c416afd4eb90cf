"""The health of a run: a few words and a reason. Pure."""

from __future__ import annotations

import math
import signal
from collections import Counter
from collections.abc import Sequence

from holdfast.probe.journal import Event, whole_number
from holdfast.probe.words import action_words, finding_words
from holdfast.units import count, duration

QUIET_SECONDS = 30.0
QUIET_STEPS = 20.0  # nothing is said before this many usual steps have passed without one
RECENT_STEPS = 1000  # what the journal says colours the health for this many steps,
RECENT_SECONDS = 600.0  # or for this long, whichever lasts longer
_WELL = ("healthy", "finished", "starting")
_MILD = ("warning", "guarded", "healing", "degraded", "resumed")  # a rank that is worse off speaks before these
_REPAIRS = {
    "roll-back": "rolled back",
    "lower-lr": "learning rate changed",
    "clip": "clipped",
    "shrink-micro-batch": "batches split",
    "restart": "restarted",
}


def rank_health(
    *,
    alive: bool,
    growing: bool,
    over: str | None,
    step: int | None,
    loss: float | None,
    age: float | None,
    usual: float | None,
    degraded: str | None,
    journal: tuple[str, str] | None = None,
) -> tuple[str, str]:
    """The health of one rank, and the reason.

    `over` is how the run ended, None while it runs; `usual` how long a step takes; `journal` the word that it gives.
    """
    if loss is not None and not math.isfinite(loss):
        return "non-finite loss", f"the loss is {loss} at step {step:,}" + (f"; {over}" if over else "")
    if over is not None:
        return over, ""
    if not growing:
        return "finished", "its tables are closed"
    if not alive:
        return "process gone", "it ended without closing its tables"
    if degraded is not None:
        return f"degraded: {degraded}", "a part of Holdfast is switched off; the training continues"
    if step is None:
        return "starting", "no step yet"
    if age is not None and age > max(QUIET_SECONDS, QUIET_STEPS * (usual or 0.0)):
        return f"no step for {duration(age)}", f"a step usually takes {duration(usual)}" if usual is not None else ""
    return journal or ("healthy", "")


def journal_health(events: Sequence[Event], *, step: int | None, now: float) -> tuple[str, str] | None:
    """What the journal's recent events make of a healthy rank: critical, healing, guarded, warning, or nothing."""
    recent = [event for event in events if _recent(event, step, now)]
    acted = [event for event in recent if event.kind == "action"]
    done = [event for event in acted if event.state == "done"]
    for event in reversed(recent):
        if event.severity == "critical" and not any(action.answers(event) for action in done):
            return f"critical: {finding_words(event.code)}{_at(event)}", ""
    for event in reversed(acted):
        if event.state == "refused":
            return f"critical: could not {action_words(event.code).to_do}{_at(event)}", str(event.row.get("detail") or "")
    for event in reversed(done):
        if event.code in _REPAIRS:
            return f"healing: {_REPAIRS[event.code]}{_at(event)}", f"because {event.row.get('because', 'of the journal')}"
    if any(event.code == "skip-batch" for event in done):
        return f"guarded, {count(num_skipped(events), 'update')} skipped", ""
    for event in reversed(recent):
        if event.severity == "warning" and event.code != "holdfast-degraded":
            return f"warning: {finding_words(event.code)}{_at(event)}", ""
    return watched_resume(events, step)


def watched_resume(events: Sequence[Event], step: int | None) -> tuple[str, str] | None:
    """How far the watch after a resume is, while it lasts."""
    rows = [event.row for event in events if event.kind == "checkpoint" and event.row.get("event") == "resume-watch"]
    begun = next((row for row in reversed(rows) if row.get("verdict") == "watching"), None)
    limit = whole_number(begun.get("steps")) if begun is not None else None
    if begun is None or limit is None or step is None or rows[-1].get("over"):
        return None
    verdict = "healthy" if rows[-1] is begun else str(rows[-1].get("verdict"))
    done = max(0, step + 1 - (whole_number(begun.get("step")) or 0))
    at = whole_number(begun.get("at"))
    where = "resumed" if at is None else f"resumed at step {at:,}"
    return f"{where}, watching: {verdict}, {min(done, limit)} of {limit} steps", ""


def num_skipped(events: Sequence[Event]) -> int:
    """Skipped updates. After many in a row the journal has not every one, but a finding now and then counts them (`so_far`)."""
    skips = [event for event in events if event.kind == "action" and event.code == "skip-batch" and event.state == "done"]
    by_reason = Counter(str(event.row.get("because")) for event in skips)
    for event in events:
        if event.kind == "finding" and event.code in by_reason:
            by_reason[event.code] = max(by_reason[event.code], whole_number(event.evidence.get("so_far")) or 0)
    return by_reason.total()


def stopped_because(events: Sequence[Event]) -> str:
    """Why Holdfast ended the training, if it did."""
    for event in reversed(events):
        if event.kind == "action" and event.code == "stop" and event.state == "done":
            return f"Holdfast stopped it: {event.settings.get('why') or event.row.get('because') or 'see the journal'}"
    return ""


def _recent(event: Event, step: int | None, now: float) -> bool:
    in_steps = event.step is not None and step is not None and step - event.step <= RECENT_STEPS
    return in_steps or (event.time is not None and now - event.time <= RECENT_SECONDS)


def _at(event: Event) -> str:
    return f" (step {event.step:,})" if event.step is not None else ""


def run_health(folder_exists: bool, alive: bool, over: str | None, ranks: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """The health of the run: that of its worst rank, or how it ended."""
    if not folder_exists:
        return "folder gone", "the run folder was removed or cannot be reached"
    for word, reason in sorted(ranks, key=lambda rank: (rank[0].startswith(_MILD), rank[0].startswith("resumed"))):
        if word not in _WELL and word != over:
            return word, reason
    if over is not None:
        return over, ""
    if not ranks:
        return ("starting", "no training has begun") if alive else ("process gone", "it never trained")
    return ("healthy", "") if any(word == "healthy" for word, _ in ranks) else ranks[0]


def exit_word(code: object) -> str:
    """How a command ended; above 128 it was a signal."""
    if not isinstance(code, int) or isinstance(code, bool):
        return "ended"
    if code == 0:
        return "finished"
    if code > 128:
        try:
            return f"killed ({signal.Signals(code - 128).name})"
        except ValueError:
            pass
    return f"exit {code}"
