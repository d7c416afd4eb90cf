"""The journals of several runs as one: by time, each entry with the machine and the run that it comes from."""

from __future__ import annotations

import json
import socket
import sys
from typing import TYPE_CHECKING, Any

from holdfast.cli.journal_lines import JournalLines, clock, print_lines

if TYPE_CHECKING:
    from holdfast.probe.cluster import Cluster
    from holdfast.probe.journal import Event


class MergedJournalLines(JournalLines):
    """The entries of several runs as lines, each with its host and run."""

    def __init__(self, kind: str | None) -> None:
        self.kind, self.started, self.ranks = kind, None, 0
        self._whose: dict[int, tuple[str, int]] = {}
        self._widths = [8, 0, 8, 0, 9]

    def events(self, journals: list[dict[str, Any]]) -> list[Event]:
        """What all journals tell, by time."""
        from holdfast.probe.journal import Folding

        events = []
        several = len({journal["run"] for journal in journals}) > 1
        for journal in journals:
            label = f"{journal['host']} {journal['run']}" if several else str(journal["host"])
            for event in Folding(journal["rows"]).events:
                if self.wanted(event):
                    self._whose[id(event)] = (label, int(journal["ranks"]))
                    events.append(event)
        return sorted(events, key=lambda event: event.time or 0.0)

    def _cells(self, event: Event) -> tuple[str, str, str, str, str]:
        from holdfast.diagnosis import event_words as entries

        label, ranks = self._whose[id(event)]
        whom = f"{label} {entries.rank_words(event, ranks)}".strip()
        return clock(event.time), "", entries.step_words(event), whom, entries.word(event)


def print_merged(cluster: Cluster, *, as_json: bool, kind: str | None, last: int | None) -> int:
    """Print the entries of all; 1 if one of them is a critical finding."""
    journals = journals_of(cluster)
    journal_lines = MergedJournalLines(kind)
    if as_json:
        from holdfast.diagnosis.event_words import row_for_json

        rows = [
            {"host": journal["host"], "run": journal["run"], **row_for_json(row)}
            for journal in journals
            for row in journal["rows"]
        ]
        rows = sorted((row for row in rows if journal_lines.wanted(row)), key=lambda row: _time(row))
        print(json.dumps(rows[-(last or 0) :], ensure_ascii=False))
    elif events := journal_lines.events(journals)[-(last or 0) :]:
        print_lines(journal_lines, events)
    else:
        print(f"no {kind} in any journal" if kind else "nothing in any journal", file=sys.stderr)
    every = (row for journal in journals for row in journal["rows"])
    return int(any(row.get("kind") == "finding" and row.get("severity") == "critical" for row in every))


def journals_of(cluster: Cluster) -> list[dict[str, Any]]:
    """The journal of every run, here and there; a run that several have, because they share a folder, once."""
    from holdfast.probe.cluster_query import without_doubles

    every = []
    for run in cluster.here:
        host = run.info().get("host") or socket.gethostname()
        every.append(
            {
                "host": host,
                "run": run.name,
                "ranks": len({recording.rank for recording in run.recordings()}),
                "rows": list(run.journal),
            }
        )
    chosen = {str(there): runs for there, runs in without_doubles(cluster)}
    for _, journals in cluster.ask(
        lambda there: there.remote.get("/v1/journal", run=chosen[str(there)]) if str(there) in chosen else []
    ):
        every += journals
    cluster.check(len(every))
    return every


def _time(row: dict[str, Any]) -> float:
    value = row.get("time")
    return float(value) if isinstance(value, (int, float)) else 0.0
