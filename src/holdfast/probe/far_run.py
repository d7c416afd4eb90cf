"""A run of a server as a screen follows it: read again there at each look, while its journal is read on here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import NoSuchRun, UsageError
from holdfast.probe.cluster import find
from holdfast.probe.glance import Glance
from holdfast.probe.journal import Event
from holdfast.probe.remote import Remote

_ROWS = 512  # of the curves: a screen is no wider


class FarRun:
    """One run of a server."""

    def __init__(self, target: str) -> None:
        (there,) = find([target]).there
        if len(there.runs) > 1:
            names = ", ".join(there.runs)
            raise UsageError(f"{there} serves several runs: {names}.", fix=f"name one: -t {there}/{next(iter(there.runs))}")
        self._remote, self.name = there.remote, next(iter(there.runs))
        self.reader = FarJournal(there.remote, self.name)

    def look(self, events: Sequence[Event], *, rows: int = _ROWS) -> Glance:
        """As `probe.glance.look`, by whoever serves it."""
        answers = self._remote.get("/v1/glance", run=self.name, rows=str(min(rows, _ROWS)))
        return Glance.from_dict(only(answers, self.name), events)


class FarJournal:
    """The rows of a journal there, as `JournalReader` has those of a file."""

    def __init__(self, remote: Remote, run: str) -> None:
        self.rows: list[dict[str, Any]] = []
        self._remote, self._run = remote, run

    def new_rows(self) -> list[dict[str, Any]]:
        """The rows that have come."""
        answer = only(self._remote.get("/v1/journal", run=self._run, after=str(len(self.rows))), self._run)
        new = [dict(row) for row in answer["rows"]]
        self.rows += new
        return new


def only(answers: Sequence[Mapping[str, Any]], run: str) -> Mapping[str, Any]:
    """A server's answer about one run."""
    mine = next((answer for answer in answers if answer.get("run") == run), None)
    if mine is None:
        raise NoSuchRun(f"run {run} is not served there any more.", fix="holdfast ps -t HOST:PORT lists what is")
    return mine
