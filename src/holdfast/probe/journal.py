"""The journal of a run as people follow it: read on from where one was, and rows about one event folded together.

Every rank writes its own row, and an action that comes from outside has one when it is posted and one for each rank that has
done or refused it. All of them are one event.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

Row = Mapping[str, Any]


class JournalReader:
    """Reads the rows that were appended since the last call; all rows so far are in `rows`."""

    def __init__(self, path: Path, position: int = 0) -> None:
        self.rows: list[dict[str, Any]] = []
        self._path, self.position = path, position  # in bytes: another reader that begins there reads on

    def new_rows(self) -> list[dict[str, Any]]:
        """The rows that have come. A line that is still being written comes next time; an invalid one is skipped."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self.position:  # another file took its place
                    self.position = 0
                file.seek(self.position)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self.position += len(whole)
        new = [row for line in whole.split(b"\n") if (row := _row(line)) is not None]
        self.rows += new
        return new


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(line.decode(errors="replace"))
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


@dataclass(slots=True, eq=False)
class Event:
    """One event, from one row or several. `row` is the one with the most content."""

    row: Row
    states: dict[int | None, str] = field(default_factory=dict)  # of an action, by rank; None is the outside
    ranks: set[int] = field(default_factory=set)
    differs: bool = False  # the ranks give different numbers

    @property
    def kind(self) -> str:
        """Finding, diagnosis, action, change or checkpoint."""
        return str(self.row.get("kind", "entry"))

    @property
    def code(self) -> str:
        """What was found or done."""
        return str(self.row.get("action" if self.kind == "action" else "code", "unknown"))

    @property
    def severity(self) -> str:
        """How bad a finding is; of anything else nothing."""
        return str(self.row.get("severity", "warning")) if self.kind == "finding" else ""

    @property
    def step(self) -> int | None:
        """The step it belongs to."""
        return whole_number(self.row.get("step"))

    @property
    def time(self) -> float | None:
        """The time of its first row."""
        value = self.row.get("time")
        return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None

    @property
    def state(self) -> str:
        """Of an action: refused if any rank refused it, done if one has done it, else posted (or what the row says)."""
        states = set(self.states.values())
        return next((word for word in ("refused", "done", "posted") if word in states), next(iter(states), ""))

    @property
    def evidence(self) -> dict[str, Any]:
        """The numbers of a finding."""
        return _dict(self.row.get("evidence"))

    @property
    def settings(self) -> dict[str, Any]:
        """The numbers of an action."""
        return _dict(self.row.get("settings"))

    @property
    def is_roll_back(self) -> bool:
        """Whether the training was put back to an earlier state, as a repair or by hand."""
        return (self.code == "roll-back" and self.state == "done") or self.row.get("do") == "rollback"

    def concerns(self, rank: int) -> bool:
        """Whether it is about that rank; what names no rank is about all."""
        return not self.ranks or rank in self.ranks

    def answers(self, finding: Event) -> bool:
        """Whether this is an action that was taken because of that finding."""
        if self.kind != "action" or finding.kind != "finding" or self.step is None or finding.step is None:
            return False
        return self.step == finding.step or (self.row.get("because") == finding.code and self.step >= finding.step)


class Folding:
    """Folds rows into events, one row after the other."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.events: list[Event] = []
        self._newest: dict[tuple[Any, ...], Event] = {}
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> Event:
        """Take one more row; the event that it belongs to, new or known."""
        rank, state = whole_number(row.get("rank")), str(row.get("state", ""))
        key = _key(row)
        event = self._newest.get(key)
        if event is None or _again(event, rank, state):
            event = Event(row)
            self.events.append(event)
            self._newest[key] = event
        else:
            event.differs = event.differs or repr(row.get("evidence")) != repr(event.row.get("evidence"))
        if _has_more(row, event.row):
            event.row = {**row, "time": event.row.get("time", row.get("time"))}
        if rank is not None:
            event.ranks.add(rank)
        if row.get("kind") == "action":
            event.states[rank] = state
        return event


def _key(row: Row) -> tuple[Any, ...]:
    """What rows of one event share."""
    kind = repr(row.get("kind"))
    if row.get("kind") == "action" and row.get("number") is not None:
        return (kind, repr(row.get("action")), repr(row["number"]))
    if row.get("kind") in ("change", "eval") and row.get("number") is not None:  # from outside: one number for all ranks
        return (kind, repr(row["number"]))
    if row.get("kind") == "checkpoint":  # ranks take different times for the same file
        return (kind, *(repr(row.get(name)) for name in ("event", "path", "step", "verdict")))
    at_a_step = row.get("kind") == "finding" and row.get("step") is not None and row.get("code") != "holdfast-degraded"
    content = "" if at_a_step else _content(row)  # without a step, only the same words are the same event
    return (kind, repr(row.get("code")), repr(row.get("action")), repr(row.get("step")), repr(row.get("because")), content)


def _content(row: Row) -> str:
    return json.dumps({key: value for key, value in row.items() if key not in ("time", "rank")}, sort_keys=True, default=str)


def _again(event: Event, rank: int | None, state: str) -> bool:
    """Whether the rank has told this already: then it happened once more, for example after a roll-back."""
    if event.kind == "action":
        return event.states.get(rank) == state
    return rank is None or rank in event.ranks or not event.ranks


def _has_more(row: Row, other: Row) -> bool:
    """Of the rows of several ranks: refused before done before posted; a bad input or loss before a good one."""
    return _weight(row) > _weight(other)


def _weight(row: Row) -> int:
    if row.get("kind") == "action":
        return {"posted": 0, "done": 1, "refused": 2}.get(str(row.get("state")), 0)
    evidence = _dict(row.get("evidence"))
    bad_input = str(evidence.get("input", "finite")) not in ("finite", "unknown", "None")
    loss = evidence.get("loss")
    bad_loss = str(loss).lower() in ("nan", "inf", "-inf")
    return 2 * bad_input + bad_loss


class Reader(Protocol):
    """Rows of a journal, of a file or of a server."""

    rows: list[dict[str, Any]]

    def new_rows(self) -> list[dict[str, Any]]:
        """Those that have come since the last call."""


class Feed:
    """The events of a live run as they come.

    An event is held back until `settle` seconds have passed in which nobody added to it, so that all ranks are in it. It comes
    a second time if its state changed after it was given out: posted, then done.
    """

    def __init__(self, reader: Reader, *, settle: float = 0.4) -> None:
        self.folding = Folding(reader.rows)
        self._reader, self._settle = reader, settle
        self._states_given = {id(event): event.state for event in self.folding.events}
        self._waiting: dict[int, tuple[Event, float]] = {}

    def new_events(self, *, all_of_them: bool = False) -> list[Event]:
        """What there is to tell now; at the end of a run nothing is held back any more."""
        now = time.monotonic()
        for row in self._reader.new_rows():
            event = self.folding.add(row)
            if self._states_given.get(id(event)) != event.state:
                self._waiting[id(event)] = (event, now)
        ready = [event for event, since in self._waiting.values() if all_of_them or now - since >= self._settle]
        for event in ready:
            del self._waiting[id(event)]
            self._states_given[id(event)] = event.state
        return ready


def whole_number(value: Any) -> int | None:
    """A step or rank from a row, or None if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return int(value)


def _dict(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}
