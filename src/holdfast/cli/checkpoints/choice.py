"""A choice as it is told in a terminal: what to do first, then the other ways, then what was rejected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from holdfast.checkpoints.choosing.options import Choice, Option, PassedOver
    from holdfast.checkpoints.history import History
    from holdfast.signals.run_folder import RunFolder

_WORDS = {
    "lr": "learning rate",
    "warmup_epochs": "warm-up",
    "warmup_steps": "warm-up",
    "clip_norm": "gradient clipping",
    "dtype": "precision",
}
_SHOWN = 8  # passed over ones that are listed


def show(choice: Choice, run: RunFolder | None) -> None:
    """Print it."""
    from rich.text import Text

    from holdfast.cli.checkpoints.telling import page

    console, option = page(), choice.option
    console.print(Text(headline(option, choice.history), style="bold green" if option.candidate else "bold red"), soft_wrap=True)
    console.print(Text(option.title))
    _table(console, facts(option, choice.history))
    _what_to_type(console, option, run)
    if choice.others:
        console.print(Text("\nother ways", style="bold"))
        for other in choice.others:
            _two_lines(console, other, choice.history)
    if choice.passed_over:
        console.print(Text("\nrejected", style="bold"))
        for line in passed_over_lines(choice.passed_over, console.width):
            console.print(line, soft_wrap=True)


def headline(option: Option, history: History) -> str:
    """The one line that says what to do."""
    from holdfast.cli.checkpoints.telling import name_of

    if option.candidate is None:
        return "start fresh: no checkpoint can be resumed from"
    where = f"{history.unit} {option.position:,}: " if option.position is not None else ""
    return f"resume from {where}{name_of(option.candidate.path)}"


def facts(option: Option, history: History) -> Iterator[tuple[str, str]]:
    """Reasons, settings and the new folder, with their labels."""
    from holdfast.cli.checkpoints.telling import name_of

    for number, words in enumerate(option.because):
        yield ("because" if number == 0 else ""), words
    if not option.settings:
        yield "settings", "as they were"
    for name, setting in option.settings.items():
        yield _WORDS.get(name, name), setting_words(name, setting)
    if option.folder is not None:
        yield "into", f"{name_of(option.folder)}, a new folder"
    if history.sources:
        yield "known from", ", ".join(name_of(Path(source)) for source in history.sources)


def setting_words(name: str, setting: dict[str, Any]) -> str:
    """A setting in words: x 0.75, which makes 0.001 to 0.00075."""
    from holdfast.cli.show import number

    value = setting["value"]
    if setting["op"] == "multiply":
        numbers = f" ({number(setting['was'])} → {number(setting['becomes'])})" if "was" in setting else ""
        return f"x {value:g}{numbers}"
    unit = {"warmup_epochs": " epochs", "warmup_steps": " steps"}.get(name, "")
    return f"{value:g}{unit}" if isinstance(value, (int, float)) else str(value)


def in_short(option: Option) -> str:
    """All settings in one line."""
    return ", ".join(
        f"{_WORDS.get(name, name)} {setting_words(name, one).split(' (')[0]}" for name, one in option.settings.items()
    )


def _table(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    """Labels, and words folded beside them."""
    from rich.text import Text

    from holdfast.cli.checkpoints.telling import folded

    lines = list(rows)
    wide = max(len(label) for label, _ in lines)
    console.print()
    for label, words in lines:
        first, *rest = folded(words, console.width - wide - 4, "")
        console.print(Text.assemble("  ", (label.ljust(wide), "dim"), "  ", first), soft_wrap=True)
        for line in rest:
            console.print(Text(" " * (wide + 4) + line), soft_wrap=True)


def _what_to_type(console: Console, option: Option, run: RunFolder | None) -> None:
    from rich.text import Text

    from holdfast.cli.checkpoints.restoring import command_for, lines_for

    lines, command = lines_for(option), run.info().get("command") if run is not None else None
    if lines:
        console.print(Text("\nin the script", style="bold"))
        for line in lines:
            console.print(Text(f"  {line}"), soft_wrap=True)
    if isinstance(command, list) and command and run is not None:
        console.print(Text("\nand to start it" if lines else "\nto start it", style="bold"))
        console.print(Text(f"  {command_for(command, run.path)}"), soft_wrap=True)


def _two_lines(console: Console, option: Option, history: History) -> None:
    from rich.text import Text

    from holdfast.cli.checkpoints.telling import folded, shortened

    where = "" if option.position is None else f", {history.unit} {option.position:,}"
    if option.candidate is not None:
        where += f", {shortened(option.candidate.path.name, 40)}"
    console.print(Text(f"  {option.title}{where}"), soft_wrap=True)
    settings = in_short(option) or "settings as they were"
    for line in folded(f"{settings}; not now: {option.why_not}", console.width, "    "):
        console.print(Text(line, style="dim"), soft_wrap=True)


def passed_over_lines(entries: Sequence[PassedOver], width: int) -> Iterator[Text]:
    """One line for each that was not taken; clean ones that are merely older are counted."""
    from rich.text import Text

    from holdfast.cli.checkpoints.telling import STYLES, folded, shortened

    older = [one for one in entries if one.why == "older"]
    told = [one for one in entries if one.why != "older"]
    wide = min(max((len(one.candidate.path.name) for one in told[:_SHOWN]), default=0), 40)
    for one in told[:_SHOWN]:
        state = one.candidate.verdict.state
        line = Text(f"  {shortened(one.candidate.path.name, wide).ljust(wide)}  ", no_wrap=True)
        line.append(state.ljust(12), STYLES[state])
        first, *rest = folded(one.why, width - line.cell_len, "")
        yield line.copy().append(first)
        yield from (Text(" " * line.cell_len + more, no_wrap=True) for more in rest)
    if len(told) > _SHOWN:
        yield Text(f"  and {len(told) - _SHOWN:,} more; --json has all", style="dim")
    if older:
        yield Text(f"  {len(older):,} older clean one{'s' if len(older) > 1 else ''}", style="dim")
