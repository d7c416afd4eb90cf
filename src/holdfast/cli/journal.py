"""`holdfast journal`: what was found in a run, what was done about it, and why."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.journal_lines import JournalLines, print_lines
from holdfast.cli.options import AllRuns, AsJson, RunNames, Targets, all_of
from holdfast.errors import StorageError, UsageError

_FOLLOW_SECONDS = 0.5


class Kind(str, Enum):
    """The kinds of entries."""

    finding = "finding"
    diagnosis = "diagnosis"
    action = "action"
    change = "change"
    eval = "eval"
    checkpoint = "checkpoint"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("journal")(journal)


def journal(
    runs: RunNames = None,
    target: Targets = None,
    everything: AllRuns = False,
    as_json: AsJson = False,
    kind: Annotated[Kind | None, typer.Option(help="Only entries of this kind.", show_default=False)] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new entries until the run ends.")] = False,
    last: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the last N entries.", show_default=False)] = None,
) -> None:
    """List what was found in a run, what was done about it, and why.

    The same entry of several ranks is one line; so is an action that was requested and then done. Exit code 1: the journal has
    a critical finding, or a machine did not answer.
    """
    from holdfast.cli.cluster_words import end
    from holdfast.probe.cluster import find
    from holdfast.probe.journal import JournalReader

    cluster = find(all_of(runs, target), everything=everything)
    if not cluster.is_one_run_here:
        if follow:
            raise UsageError("--follow is for one run of this machine.", fix="ask again without it, or follow there")
        from holdfast.cli.journal_merged import print_merged

        end(cluster, print_merged(cluster, as_json=as_json, kind=kind.value if kind else None, last=last))
        return
    run = cluster.here[0]
    reader = JournalReader(_readable(run.journal.path))
    reader.new_rows()
    journal_lines = JournalLines(run, kind.value if kind else None)
    if as_json:
        _as_json(journal_lines, reader.rows, last, lines=follow)
    else:
        _as_lines(journal_lines, reader.rows, last, quiet=follow)
    if follow:
        _follow(journal_lines, reader, as_json=as_json)
    if any(row.get("kind") == "finding" and row.get("severity") == "critical" for row in reader.rows):
        raise typer.Exit(1)


def _readable(path: Path) -> Path:
    """The path, if what is there can be read; a run in which nothing happened has no journal."""
    try:
        path.open("rb").close()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}.", fix="see who may read it: ls -l " + str(path)) from error
    return path


def _as_json(journal_lines: JournalLines, rows: Sequence[dict[str, Any]], last: int | None, *, lines: bool) -> None:
    """All entries as one list; one object a line where more may come."""
    from holdfast.diagnosis.event_words import row_for_json

    chosen = [row_for_json(row) for row in rows if journal_lines.wanted(row)][-(last or 0) :]
    for text in map(_dump, chosen) if lines else [_dump(chosen)]:
        print(text, flush=True)


def _dump(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False)


def _as_lines(journal_lines: JournalLines, rows: Sequence[dict[str, Any]], last: int | None, *, quiet: bool) -> None:
    from holdfast.probe.journal import Folding

    events = [event for event in Folding(rows).events if journal_lines.wanted(event)][-(last or 0) :]
    if events:
        print_lines(journal_lines, events)
    elif not quiet:
        entries = f"no {journal_lines.kind}" if journal_lines.kind else "nothing"
        print(f"{entries} in the journal of {journal_lines.run.name}", file=sys.stderr)


def _follow(journal_lines: JournalLines, reader: Any, *, as_json: bool) -> None:
    """Print new entries until the run is over."""
    from holdfast.probe.journal import Feed
    from holdfast.probe.state import read_state

    feed, num_printed = Feed(reader), len(reader.rows)
    while True:
        alive = read_state(journal_lines.run, rows=reader.rows, events=feed.folding.events).alive
        events = [event for event in feed.new_events(all_of_them=not alive) if journal_lines.wanted(event)]
        if as_json:
            _as_json(journal_lines, reader.rows[num_printed:], None, lines=True)
        elif events:
            print_lines(journal_lines, events)
        num_printed = len(reader.rows)
        sys.stdout.flush()
        if not alive:
            return
        time.sleep(_FOLLOW_SECONDS)
