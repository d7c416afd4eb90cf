"""`holdfast journal`: what was found in a run, what was done about it, and why."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.options import AllRuns, AsJson, Targets
from holdfast.errors import StorageError, UsageError

if TYPE_CHECKING:
    from rich.text import Text

    from holdfast.probe.journal import Event
    from holdfast.signals.run_folder import RunFolder

_FOLLOW_SECONDS = 0.5
_NARROWEST = 24  # columns for the words, however narrow the terminal


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
    target: Targets = None,
    everything: AllRuns = False,
    as_json: AsJson = False,
    kind: Annotated[Kind | None, typer.Option(help="Only entries of this kind.", show_default=False)] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until the run ends.")] = False,
    last: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the last N entries.", show_default=False)] = None,
) -> None:
    """Tell what was found in a run, what was done about it, and why.

    What several ranks tell alike is one line, and so is an action that was posted and then done. `--json` gives every entry as it
    was written, and its words. Ends with 1 if the journal holds a critical finding, or if one of several did not answer.
    """
    from holdfast.cli.cluster_words import end
    from holdfast.probe.cluster import find
    from holdfast.probe.journal import JournalReader

    cluster = find(target or [], everything=everything)
    if not cluster.is_one_run_here:
        if follow:
            raise UsageError("--follow is for one run of this machine.", fix="ask again without it, or follow there")
        from holdfast.cli.journal_merged import tell_merged

        end(cluster, tell_merged(cluster, as_json=as_json, kind=kind.value if kind else None, last=last))
        return
    run = cluster.here[0]
    reader = JournalReader(_readable(run.journal.path))
    reader.new_rows()
    told = Telling(run, kind.value if kind else None)
    if as_json:
        _as_json(told, reader.rows, last, lines=follow)
    else:
        _as_lines(told, reader.rows, last, quiet=follow)
    if follow:
        _follow(told, reader, as_json=as_json)
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


class Telling:
    """How the entries of one run are told: since when they count, how many ranks there are, which kind is wanted."""

    def __init__(self, run: RunFolder, kind: str | None = None) -> None:
        self.run, self.kind = run, kind
        started = run.info().get("started")
        self.started = float(started) if isinstance(started, (int, float)) else None
        self.ranks = len({one.rank for one in run.recordings()})
        self._widths = [8, 0, 8, 0, 9]

    def wanted(self, entry: Any) -> bool:
        """Whether an event or a row is of the kind that was asked for."""
        return self.kind is None or self.kind == (entry.get("kind") if isinstance(entry, dict) else entry.kind)

    def lines(self, events: Sequence[Event], width: int | None = None) -> list[Text]:
        """One line for each event: time, time since the start, step, rank if there are several, severity or state, words.

        With a `width` the words are folded under each other; without one each event is one line.
        """
        from rich.text import Text

        from holdfast.cli import entries

        rows = [self._cells(event) for event in events]
        for column in range(5):  # as wide as they ever were: what is told later stands under what was told before
            self._widths[column] = max(self._widths[column], *(len(row[column]) for row in rows), 0)
        found: list[Text] = []
        for event, row in zip(events, rows, strict=True):
            line = Text(no_wrap=True)
            for column, (cell, wide) in enumerate(zip(row, self._widths, strict=True)):
                shown = cell.ljust(wide) if column in (0, 4) else cell.rjust(wide)
                if wide:
                    line.append(shown, "dim" if column < 2 else entries.style(event) if column == 4 else "").append("  ")
            found += _folded(line, entries.sentence(event), width)
        return found

    def _cells(self, event: Event) -> tuple[str, str, str, str, str]:
        from holdfast.cli import entries

        since = after(event.time - self.started) if event.time and self.started else ""
        whom = entries.rank_words(event, self.ranks)
        return clock(event.time), since, entries.step_words(event), whom, entries.word(event)


def after(seconds: float) -> str:
    """How long after the start, as a clock: +4:05, +2:14:05, +3 d 02:14:05."""
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"+{days} d {hour:02}:{minute:02}:{second:02}"
    return f"+{hour}:{minute:02}:{second:02}" if hour else f"+{minute}:{second:02}"


def clock(at: float | None) -> str:
    """The local time; with the day if that is not today."""
    if at is None:
        return "–"
    try:
        when = time.localtime(at)
    except (OverflowError, OSError, ValueError):
        return "–"
    return time.strftime("%H:%M:%S" if when[:3] == time.localtime()[:3] else "%d %b %H:%M:%S", when)


def _folded(line: Text, words: str, width: int | None) -> list[Text]:
    """The words behind what the line holds; what does not fit stands under them."""
    import textwrap

    from rich.text import Text

    if width is None:
        return [line.append(words)]
    start = line.cell_len
    first, *rest = textwrap.wrap(words, max(_NARROWEST, width - start), break_on_hyphens=False) or [""]
    return [line.append(first), *(Text(" " * start + part, no_wrap=True) for part in rest)]


def _as_json(told: Telling, rows: Sequence[dict[str, Any]], last: int | None, *, lines: bool) -> None:
    """All entries as one list; one object a line where more may come."""
    from holdfast.cli.entries import row_for_json

    chosen = [row_for_json(row) for row in rows if told.wanted(row)][-(last or 0) :]
    for text in map(_dump, chosen) if lines else [_dump(chosen)]:
        print(text, flush=True)


def _dump(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False)


def _as_lines(told: Telling, rows: Sequence[dict[str, Any]], last: int | None, *, quiet: bool) -> None:
    from holdfast.probe.journal import Folding

    events = [event for event in Folding(rows).events if told.wanted(event)][-(last or 0) :]
    if events:
        print_lines(told, events)
    elif not quiet:
        what = f"no {told.kind}" if told.kind else "nothing"
        print(f"{what} in the journal of {told.run.name}", file=sys.stderr)


def print_lines(told: Telling, events: Sequence[Event]) -> None:
    """In a terminal as wide as it is; elsewhere one line each."""
    from rich.console import Console

    console = Console(highlight=False)
    for line in told.lines(events, console.width if console.is_terminal else None):
        console.print(line, soft_wrap=True)


def _follow(told: Telling, reader: Any, *, as_json: bool) -> None:
    """Tell what comes, until the run is over and all of it is told."""
    from holdfast.probe.journal import Feed
    from holdfast.probe.state import read_state

    feed, known = Feed(reader), len(reader.rows)
    while True:
        alive = read_state(told.run, rows=reader.rows, events=feed.folding.events).alive
        events = [event for event in feed.new_events(all_of_them=not alive) if told.wanted(event)]
        if as_json:
            _as_json(told, reader.rows[known:], None, lines=True)
        elif events:
            print_lines(told, events)
        known = len(reader.rows)
        sys.stdout.flush()
        if not alive:
            return
        time.sleep(_FOLLOW_SECONDS)
