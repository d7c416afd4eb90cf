"""`holdfast tail`: a run on one screen, redrawn while it trains."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import AsJson, Target

if TYPE_CHECKING:
    from holdfast.probe.glance import Glance
    from holdfast.signals.run_folder import RunFolder

_REDRAW_SECONDS = 0.25
_LINE_SECONDS = 1.0
_WIDEST = 110


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("tail")(tail)


def tail(
    target: Target = None,
    as_json: AsJson = False,
    once: Annotated[bool, typer.Option("--once", help="Show it once, as it is now.")] = False,
) -> None:
    """Watch a run on one screen: loss, norms, speed, memory, health.

    Ends by itself when the run ends. Into a pipe or file it writes a line whenever something changed, one a second at most.
    """
    from holdfast.probe.target import resolve

    run = resolve(target)
    if as_json or not sys.stdout.isatty():
        _lines(run, as_json=as_json, once=once)
    else:
        _screen(run, once=once)


def _screen(run: RunFolder, *, once: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    from holdfast.cli.screen import screen
    from holdfast.probe.glance import look

    console = Console(highlight=False)
    glance = look(run)
    if once:
        console.print(screen(glance, min(console.width, _WIDEST)))
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            live.update(screen(glance, min(console.width, _WIDEST)), refresh=True)
            if not glance.state.alive:
                return
            time.sleep(_REDRAW_SECONDS)
            glance = look(run)


def _lines(run: RunFolder, *, as_json: bool, once: bool) -> None:
    from holdfast.probe.glance import look

    before = None
    while True:
        glance = look(run, rows=1)
        now = (glance.state.health, glance.state.alive, [rank.step for rank in glance.state.ranks], len(glance.evaluations))
        if now != before:
            print(json_line(glance) if as_json else plain_line(glance), flush=True)
        before = now
        if once or not glance.state.alive:
            return
        time.sleep(_LINE_SECONDS)


def json_line(glance: Glance) -> str:
    """The state of a run as one JSON object."""
    from holdfast.cli.show import for_json

    content = {"time": round(time.time(), 3), **glance.state.as_dict(), "evaluations": glance.evaluations[-1:]}
    content["findings"] = content["findings"][-5:]
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
