"""What Holdfast has done about something while the run lived, from its journal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from holdfast.probe.journal import Event, Folding


@dataclass(frozen=True, slots=True)
class Done:
    """An action, and how often it was taken for the same reason."""

    event: Event
    times: int

    def as_row(self) -> dict[str, Any]:
        """As `--json` gives it."""
        event = self.event
        return {"action": event.code, "state": event.state, "step": event.step, "because": self.because, "times": self.times}

    @property
    def because(self) -> str:
        """The finding that it answers."""
        return str(self.event.row.get("because") or "")


def all_done(rows: Iterable[Mapping[str, Any]]) -> list[Done]:
    """The actions of a run, first ones first; those on single updates once for each reason, with their number.

    The journal thins out what comes again and again, and says how often it was so far.
    """
    events = Folding(rows).events
    by_key: dict[tuple[object, ...], Done] = {}
    for event in (event for event in events if event.kind == "action"):
        key = (id(event),) if _posted(event) else (event.code, event.row.get("because"), event.state)
        earlier = by_key.get(key)
        by_key[key] = Done(event, 1) if earlier is None else Done(earlier.event, earlier.times + 1)
    return [replace(one, times=_counted(one, events)) for one in by_key.values()]


def done_about(codes: Collection[str], onset: int, done: Iterable[Done]) -> tuple[Done, ...]:
    """Those that answer one of these findings, from its beginning on."""
    return tuple(one for one in done if one.because in codes and (one.event.step or 0) >= onset)


def _posted(event: Event) -> bool:
    """Whether it was decided outside, and so is one of its own; what a reflex does comes again and again."""
    return event.row.get("number") is not None


def _counted(done: Done, events: Iterable[Event]) -> int:
    if _posted(done.event):
        return done.times
    counts = [event.evidence.get("so_far") for event in events if event.kind == "finding" and event.code == done.because]
    return max([done.times, *(count for count in counts if isinstance(count, int))])
