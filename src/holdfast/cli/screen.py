"""The screen of `holdfast tail`: curves of the last steps, health, evaluations and findings."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from holdfast.cli.show import duration, number, rate, share, size, sparkline
from holdfast.diagnosis import event_words as entries
from holdfast.probe.glance import Glance
from holdfast.probe.journal import Event

_LABEL, _VALUE, _SIDES = 11, 11, 25
_BORDER, _CLOCK = 4, 9
_SHOWN = 4
_STILL = ("no step", "paused")  # health of a rank that makes no steps: an ETA would be wrong


def health_style(word: str) -> str:
    """The colour of a health word."""
    if word in ("healthy", "finished") or (word.startswith("resumed") and "watching: healthy" in word):
        return "green"
    if word.startswith(("starting", "no step", "degraded", "ended", "guarded", "healing", "warning", "resumed", "paused")):
        return "yellow"
    return "red"


def screen(glance: Glance, width: int, *, with_events: bool = True) -> RenderableType:
    """Everything there is to see, in at most `width` columns; without the newest events where those scroll by above it."""
    state = glance.state
    parts: list[RenderableType] = [_summary(glance)]
    if glance.curves:
        parts += [Text(), _curves(glance, max(10, width - _LABEL - _VALUE - _SIDES))]
    if len(state.ranks) > 1:
        parts += [Text(), _ranks(glance)]
    if glance.evaluations:
        parts += [Text(), _evaluations(glance)]
    if with_events and glance.events:
        parts += [Text(), _events(glance, width - _BORDER - _CLOCK)]
    policy = f" · {policy_word(state.policy)}" if state.policy != "observe" else ""
    title = Text.assemble((state.name, "bold"), (f" · {_how_long(glance)}{policy}", "dim"))
    health = Text.assemble("● ", state.health, style=health_style(state.health))
    return Panel(
        Group(*parts), title=title, title_align="left", subtitle=health, subtitle_align="right", border_style="dim", width=width
    )


def _how_long(glance: Glance) -> str:
    state = glance.state
    if state.started is None:
        return "running" if state.alive else "over"
    length = duration(max(0.0, (state.ended or time.time()) - state.started))
    return f"running for {length}" if state.alive else f"ran for {length}" if state.ended else "over"


def _summary(glance: Glance) -> Text:
    """Where it is and how fast."""
    lead = glance.lead
    if lead is None or lead.step is None:
        return Text(glance.state.reason or "no step yet", style="yellow")
    line = Text.assemble(("step ", "dim"), (f"{lead.step:,}", "bold"))
    if lead.epoch is not None:
        line.append("   epoch ", "dim").append(str(lead.epoch))
    if (progress := glance.progress) is not None:
        moves = not lead.health.startswith(_STILL)
        line.append(f" ({100 * progress.share:.0f} %)")
        if moves:
            line.append("   epoch ETA ", "dim").append(duration(progress.epoch_seconds))
        if moves and progress.run_seconds is not None:
            line.append("   run ETA ", "dim").append(duration(progress.run_seconds)).append(f" ({progress.epochs} epochs)", "dim")
    line.append("   ").append(rate(lead.rate))
    line.append("   last step ", "dim").append(f"{duration(lead.age)} ago")
    if glance.first_step:
        line.append("   curves from step ", "dim").append(f"{glance.first_step:,}", "dim")
    if glance.state.reason:
        line.append(f"   {glance.state.reason}", health_style(glance.state.health))
    return line


def _curves(glance: Glance, width: int) -> Table:
    """One line for each quantity: name, value now, curve, range."""
    lead, curves = glance.lead, glance.curves
    assert lead is not None
    memory, memory_curve = _memory(glance)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=_LABEL - 1, style="dim")
    grid.add_column(width=_VALUE - 1, justify="right", style="bold")
    grid.add_column(width=width, no_wrap=True)
    grid.add_column(no_wrap=True, style="dim")
    for name, value, curve, colour, formatted in (
        ("loss", number(lead.loss), curves["loss"], "cyan", number),
        ("grad norm", number(lead.grad_norm), curves["grad_norm"], "blue", number),
        ("lr", number(lead.lr), curves["lr"], "blue", number),
        ("step rate", rate(lead.rate), curves["rate"], "magenta", rate),
        ("data wait", share(lead.data_share), curves["data_share"], "magenta", share),
        ("GPU memory" if lead.gpu_memory is not None else "memory", memory, memory_curve, "yellow", size),
    ):
        line = sparkline(curve, width, from_zero=formatted in (rate, share, size))
        grid.add_row(name, value, Text(line, style=colour), _range(curve, formatted))
    grid.add_row("Holdfast", share(lead.budget), Text("of each step", style="dim"), "")
    return grid


def _range(curve: Any, formatted: Callable[[float], str]) -> str:
    finite = curve[np.isfinite(curve)]
    return f"{formatted(float(finite.min()))} … {formatted(float(finite.max()))}" if len(finite) else ""


def _memory(glance: Glance) -> tuple[str, Any]:
    lead = glance.lead
    assert lead is not None
    if lead.gpu_memory is not None:
        return size(lead.gpu_memory), glance.curves["gpu_allocated"]
    return size(lead.host_memory), glance.curves["host_rss"]


def _ranks(glance: Glance) -> Text:
    """All ranks in a line or two; a lagging or sick one stands out."""
    line = Text("ranks  ", style="dim")
    for rank in glance.state.ranks[:16]:
        name = f"{rank.rank}" if rank.part == 0 else f"{rank.rank}.{rank.part}"
        line.append(f"{name} ", "bold").append(f"{number(rank.step)} ").append("● ", health_style(rank.health))
        if rank.health != "healthy":
            line.append(f"{rank.health} ", health_style(rank.health))
        line.append("  ")
    if len(glance.state.ranks) > 16:
        line.append(f"and {len(glance.state.ranks) - 16} more", "dim")
    return line


def _evaluations(glance: Glance) -> Table:
    grid = Table.grid(padding=(0, 2))
    for entry in reversed(glance.evaluations[-_SHOWN:]):
        metrics = Text("   ".join(f"{name} {number(value)}" for name, value in entry["metrics"].items()), style="cyan")
        if entry.get("printed"):
            metrics.append("  (printed)", "dim")
        step = Text(f"step {entry['step']:,}")
        grid.add_row(Text("evaluated", style="dim"), step, Text(str(entry["split"])), metrics)
    return grid


def _events(glance: Glance, width: int) -> Table:
    """The newest findings and actions, newest first."""
    grid = Table.grid(padding=(0, 1))
    newest = list(entries.with_reflexes([event for event in glance.events if entries.shown_live(event)]))[-_SHOWN:]
    for event, reflex in reversed(newest):
        at = time.strftime("%H:%M:%S", time.localtime(event.time)) if event.time is not None else ""
        grid.add_row(Text(at, style="dim"), event_line(glance, event, reflex, width))
    return grid


def event_line(glance: Glance, event: Event, reflex: Event | None, width: int) -> Text:
    """The line of one event, coloured by how bad it is; what does not fit is indented under it."""
    line = entries.live_line(event, reflex, ranks=len({rank.rank for rank in glance.state.ranks}))
    folded = textwrap.wrap(line, max(width, 20), subsequent_indent="    ", break_on_hyphens=False)
    return Text("\n".join(folded), style=entries.style(event))


def policy_word(policy: str) -> str:
    """A policy's name; of a user's own file the file's."""
    return policy.rsplit("/", 1)[-1]
