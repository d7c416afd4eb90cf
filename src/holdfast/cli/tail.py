"""`holdfast tail`: a run on one screen, redrawn while it trains."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import termios
import time
import tty
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.options import AsJson, RunName, Target, one_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.probe.far_run import FarRun
    from holdfast.probe.glance import Glance
    from holdfast.probe.journal import Event
    from holdfast.signals.run_folder import RunFolder

_REDRAW_SECONDS = 0.25
_LINE_SECONDS = 1.0
_BEFORE, _LOOK_BACK = 5, 50  # events from before it was started, for a beginning; how many are looked at for them


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("tail")(tail)


def tail(
    run: RunName = None,
    target: Target = None,
    as_json: AsJson = False,
    once: Annotated[bool, typer.Option("--once", help="Print the current state once.")] = False,
) -> None:
    """Watch a live run, here or on HOST:PORT: loss, gradient norm, speed, memory, health, findings and actions.

    `q` quits; it also ends with the run. In a pipe it prints a line on every change, at most one a second, and one for each
    finding (!), action (*), change (~) and checkpoint (+).
    """
    from holdfast.probe.address import is_server

    named = one_of(run, target)
    followed = _far(named) if named is not None and is_server(named) else _here(named)
    if as_json or not sys.stdout.isatty():
        _lines(followed, as_json=as_json, once=once)
    else:
        _screen(followed, once=once)


def _far(address: str) -> FarRun:
    from holdfast.probe.far_run import FarRun

    return FarRun(address)


def _here(target: str | None) -> RunFolder:
    from holdfast.probe.target import resolve

    return resolve(target)


def _screen(run: RunFolder | FarRun, *, once: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    from holdfast.cli.screen import event_line, screen

    console = Console(highlight=False)
    followed = Followed(run)
    if once:
        console.print(screen(followed.look(), console.width))
        return
    glance = followed.look()
    with Keys() as keys, Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            for event, reflex in followed.news(glance):
                live.console.print(event_line(glance, event, reflex, console.width))
            live.update(screen(glance, console.width, with_events=False), refresh=True)
            if not glance.state.alive or keys.pressed(followed.pause) in ("q", "Q"):
                return
            glance = followed.look()


class Keys:
    """Single keys of a terminal, without echo. If the input is not a terminal, `pressed` only waits."""

    def __enter__(self) -> Keys:
        self._before: list[Any] | None = None
        with contextlib.suppress(OSError, ValueError, termios.error):
            self._before = termios.tcgetattr(0)
            tty.setcbreak(0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, self._before)

    def pressed(self, seconds: float) -> str:
        """The key pressed within so many seconds; empty without one."""
        if self._before is None:
            time.sleep(seconds)
        elif select.select([0], [], [], seconds)[0]:
            return os.read(0, 1).decode(errors="replace")
        return ""


class Followed:
    """A run, local or on a server, and its journal, read incrementally."""

    def __init__(self, run: RunFolder | FarRun) -> None:
        from holdfast.probe.journal import Feed, JournalReader
        from holdfast.signals.run_folder import RunFolder

        here = isinstance(run, RunFolder)
        self.run, self.pause = run, _REDRAW_SECONDS if here else _LINE_SECONDS
        self.reader = JournalReader(run.journal.path) if isinstance(run, RunFolder) else run.reader
        self.reader.new_rows()
        self._feed = Feed(self.reader)
        self._before = self._feed.folding.events[-_LOOK_BACK:]

    def look(self, **wanted: Any) -> Glance:
        """The current state of the run."""
        from holdfast.probe.glance import look
        from holdfast.signals.run_folder import RunFolder

        events = self._feed.folding.events
        if not isinstance(self.run, RunFolder):
            return self.run.look(events, **wanted)
        return look(self.run, journal=self.reader.rows, events=events, **wanted)

    def news(self, glance: Glance) -> list[tuple[Event, Event | None]]:
        """Events since the last call, each with its immediate action; the first call returns the last few earlier ones."""
        from holdfast.diagnosis.event_words import shown_live, with_reflexes

        new = self._feed.new_events(all_of_them=not glance.state.alive)
        before, self._before = self._before, []
        shown = [list(with_reflexes([event for event in events if shown_live(event)])) for events in (before, new)]
        return shown[0][-_BEFORE:] + shown[1]


def _lines(run: RunFolder | FarRun, *, as_json: bool, once: bool) -> None:
    followed = Followed(run)
    before, num_printed = None, len(followed.reader.rows)
    while True:
        glance = followed.look(rows=1)
        news = followed.news(glance)
        if as_json:
            _print_entries(followed.reader.rows[num_printed:])
            num_printed = len(followed.reader.rows)
        elif not once:
            _print_events(glance, news)
        now = (glance.state.health, glance.state.alive, [rank.step for rank in glance.state.ranks], len(glance.evaluations))
        if now != before:
            print(json_line(glance) if as_json else plain_line(glance), flush=True)
        before = now
        if once or not glance.state.alive:
            return
        time.sleep(_LINE_SECONDS)


def _print_events(glance: Glance, news: Sequence[tuple[Event, Event | None]]) -> None:
    from holdfast.diagnosis.event_words import live_line

    ranks = len({rank.rank for rank in glance.state.ranks})
    for event, reflex in news:
        print(live_line(event, reflex, ranks=ranks), flush=True)


def _print_entries(rows: Sequence[dict[str, Any]]) -> None:
    from holdfast.diagnosis.event_words import row_for_json

    for row in rows:
        print(json.dumps(row_for_json(row), ensure_ascii=False), flush=True)


def json_line(glance: Glance) -> str:
    """The state of a run as one JSON object."""
    from holdfast.cli.show import for_json

    content = {"kind": "state", "time": round(time.time(), 3), **glance.state.as_dict(), "evaluations": glance.evaluations[-1:]}
    content["findings"], content["actions"] = content["findings"][-_BEFORE:], content["actions"][-_BEFORE:]
    return json.dumps(for_json(content), ensure_ascii=False)


def plain_line(glance: Glance) -> str:
    """The state of a run in one line of words."""
    from holdfast.cli.show import number, rate, share, size

    lead = glance.lead
    if lead is None or lead.step is None:
        return f"{glance.state.name}: {glance.state.health}"
    memory = size(lead.gpu_memory if lead.gpu_memory is not None else lead.host_memory)
    parts = [
        f"step {lead.step}",
        f"loss {number(lead.loss)}",
        f"norm {number(lead.grad_norm)}",
        f"lr {number(lead.lr)}",
        rate(lead.rate),
        f"data {share(lead.data_share)}",
        f"memory {memory}",
        f"cost {share(lead.budget)}",
        glance.state.health,
    ]
    return "  ".join(parts)
