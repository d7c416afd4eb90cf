"""The entries of a journal as lines: time, time since the start, step, rank, severity or state, words."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text

    from holdfast.probe.journal import Event
    from holdfast.signals.run_folder import RunFolder

_NARROWEST = 24  # columns for the words, however narrow the terminal


class JournalLines:
    """The entries of one run as lines: relative to its start, with its ranks, of the wanted kind."""

    def __init__(self, run: RunFolder, kind: str | None = None) -> None:
        self.run, self.kind = run, kind
        started = run.info().get("started")
        self.started = float(started) if isinstance(started, (int, float)) else None
        self.ranks = len({recording.rank for recording in run.recordings()})
        self._widths = [8, 0, 8, 0, 9]

    def wanted(self, entry: Any) -> bool:
        """Whether an event or a row is of the kind that was asked for."""
        return self.kind is None or self.kind == (entry.get("kind") if isinstance(entry, dict) else entry.kind)

    def lines(self, events: Sequence[Event], width: int | None = None) -> list[Text]:
        """One line for each event: time, time since the start, step, rank if there are several, severity or state, words.

        With a `width` the words are folded under each other; without one each event is one line.
        """
        from rich.text import Text

        from holdfast.diagnosis import event_words as entries

        rows = [self._cells(event) for event in events]
        for column in range(5):  # as wide as they ever were: what is told later stands under what was told before
            self._widths[column] = max(self._widths[column], *(len(row[column]) for row in rows), 0)
        lines: list[Text] = []
        for event, row in zip(events, rows, strict=True):
            line = Text(no_wrap=True)
            for column, (cell, wide) in enumerate(zip(row, self._widths, strict=True)):
                shown = cell.ljust(wide) if column in (0, 4) else cell.rjust(wide)
                if wide:
                    line.append(shown, "dim" if column < 2 else entries.style(event) if column == 4 else "").append("  ")
            lines += _folded(line, entries.sentence(event), width)
        return lines

    def _cells(self, event: Event) -> tuple[str, str, str, str, str]:
        from holdfast.diagnosis import event_words as entries

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


def _folded(line: Text, text: str, width: int | None) -> list[Text]:
    """The words after the columns; what does not fit is indented below."""
    import textwrap

    from rich.text import Text

    if width is None:
        return [line.append(text)]
    start = line.cell_len
    first, *rest = textwrap.wrap(text, max(_NARROWEST, width - start), break_on_hyphens=False) or [""]
    return [line.append(first), *(Text(" " * start + part, no_wrap=True) for part in rest)]


def print_lines(journal_lines: JournalLines, events: Sequence[Event]) -> None:
    """In a terminal as wide as it is; elsewhere one line each."""
    from rich.console import Console

    console = Console(highlight=False)
    for line in journal_lines.lines(events, console.width if console.is_terminal else None):
        console.print(line, soft_wrap=True)
