"""What was done in this run so far: the action rows of its journal, as policies ask for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.signals.actions import Action


@dataclass(frozen=True, slots=True)
class Past:
    """An action and what became of it; `at` is the step at which it was done, or decided where that is not known."""

    action: Action
    state: str
    at: int


@dataclass(frozen=True, slots=True)
class ActionLog:
    """Actions in the order in which they were answered. Refused ones are part of it: they were tried."""

    entries: tuple[Past, ...] = field(default=())

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]]) -> ActionLog:
        """Read the answered actions of a journal; several ranks that did the same thing count once."""
        seen: dict[object, Past] = {}
        for row in rows:
            if row.get("kind") != "action" or row.get("state") not in ("done", "refused"):
                continue
            entry = _entry(row)
            if entry is not None:
                key = row.get("number", (entry.action.kind, entry.action.step))
                if key not in seen or entry.state == "refused":
                    seen[key] = entry
        return cls(tuple(seen.values()))

    def count(self, kind: str, *, since: int = -1, state: str = "done") -> int:
        """How many actions of a kind were done at or after step `since`."""
        return sum(1 for entry in self.entries if entry.action.kind == kind and entry.state == state and entry.at >= since)

    def last(self, kind: str) -> Past | None:
        """The newest action of a kind that was done."""
        done = [entry for entry in self.entries if entry.action.kind == kind and entry.state == "done"]
        return done[-1] if done else None

    def tried(self, kind: str, *, since: int = -1) -> tuple[Past, ...]:
        """All of a kind that were done or refused at or after step `since`."""
        return tuple(entry for entry in self.entries if entry.action.kind == kind and entry.at >= since)


def _entry(row: Mapping[str, Any]) -> Past | None:
    try:
        action = Action.from_row(row)
        return Past(action, str(row["state"]), int(row.get("at") or action.step))
    except (KeyError, TypeError, ValueError):
        return None
