"""A choice in a terminal: the recommendation and its reasons, the command, then the checkpoints that were rejected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from holdfast.recovery.choosing.history import History
    from holdfast.recovery.choosing.options import Choice, Option, Rejected
    from holdfast.signals.run_folder import RunFolder

_WORDS = {
    "lr": "learning rate",
    "warmup_epochs": "warm-up",
    "warmup_steps": "warm-up",
    "clip_norm": "gradient clipping",
    "dtype": "precision",
}
_SHOWN = 8  # rejected checkpoints that are listed


def show(choice: Choice, run: RunFolder | None) -> None:
    """Print it."""
    from rich.text import Text

    from holdfast.cli.checkpoints.layout import page

    console, option = page(), choice.option
    console.print(Text(headline(option, choice.history), style="bold green" if option.candidate else "bold red"), soft_wrap=True)
    console.print(Text(option.title))
    _table(console, (*facts(option, choice.history), *_otherwise(choice)))
    _what_to_type(console, option, run)
    if choice.rejected:
        console.print(Text("\nrejected", style="bold"))
        for line in rejected_lines(choice.rejected, console.width):
            console.print(line, soft_wrap=True)


def headline(option: Option, history: History) -> str:
    """The one line that says what to do."""
    from holdfast.cli.checkpoints.layout import name_of

    if option.candidate is None:
        return "start fresh: no checkpoint is usable"
    where = f"{history.unit} {option.position:,}: " if option.position is not None else ""
    return f"resume from {where}{name_of(option.candidate.path)}"


def facts(option: Option, history: History) -> Iterator[tuple[str, str]]:
    """Reasons, settings and the new folder, with their labels."""
    from holdfast.cli.checkpoints.layout import name_of

    for number, reason in enumerate(option.because):
        yield ("because" if number == 0 else ""), reason
    if not option.settings:
        yield "settings", "unchanged"
    for name, setting in option.settings.items():
        yield _WORDS.get(name, name), setting_words(name, setting)
    if option.folder is not None:
        yield "write to", f"{name_of(option.folder)}, a new folder"
    if history.sources:
        yield "read from", ", ".join(name_of(Path(source)) for source in history.sources)


def setting_words(name: str, setting: dict[str, Any]) -> str:
    """A setting in words: x 0.75, which makes 0.001 to 0.00075."""
    from holdfast.cli.show import number

    value = setting["value"]
    if setting["op"] == "multiply":
        values = f" ({number(setting['was'])} → {number(setting['becomes'])})" if "was" in setting else ""
        return f"x {value:g}{values}"
    unit = {"warmup_epochs": " epochs", "warmup_steps": " steps"}.get(name, "")
    return f"{value:g}{unit}" if isinstance(value, (int, float)) else str(value)


def in_short(option: Option) -> str:
    """All settings in one line."""
    return ", ".join(
        f"{_WORDS.get(name, name)} {setting_words(name, value).split(' (')[0]}" for name, value in option.settings.items()
    )


def _table(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    """Labels, and words folded beside them."""
    from rich.text import Text

    from holdfast.cli.checkpoints.layout import folded

    lines = list(rows)
    wide = max(len(label) for label, _ in lines)
    console.print()
    for label, text in lines:
        first, *rest = folded(text, console.width - wide - 4, "")
        console.print(Text.assemble("  ", (label.ljust(wide), "dim"), "  ", first), soft_wrap=True)
        for line in rest:
            console.print(Text(" " * (wide + 4) + line), soft_wrap=True)


def _otherwise(choice: Choice) -> Iterator[tuple[str, str]]:
    """What to try if the recommended checkpoint fails too; of a healthy run there is nothing to say."""
    other = next(iter(choice.others), None)
    if other is None or not other.because or choice.recommended == "newest":
        return
    name = "a fresh start" if other.candidate is None else other.candidate.path.name
    yield "if it fails", f"{name} ({in_short(other) or 'settings unchanged'})"


def _what_to_type(console: Console, option: Option, run: RunFolder | None) -> None:
    from rich.text import Text

    from holdfast.cli.checkpoints.restoring import commands_for, lines_for

    commands = commands_for(option, run.info(), run.path) if run is not None else None
    sections = {"in the script": lines_for(option) if commands is None or not commands.resumes else []}
    if commands is not None:
        title = "then start it" if sections["in the script"] else "to resume" if option.candidate else "to start"
        sections |= {title: [commands.start], "when it runs": [commands.change] if commands.change else []}
    for title, lines in sections.items():
        if lines:
            console.print(Text(f"\n{title}", style="bold"))
        for line in lines:
            console.print(Text(f"  {line}"), soft_wrap=True)


def rejected_lines(entries: Sequence[Rejected], width: int) -> Iterator[Text]:
    """One line for each that was not taken; clean ones that are merely older are counted."""
    from rich.text import Text

    from holdfast.cli.checkpoints.layout import STYLES, folded, shortened

    older = [entry for entry in entries if entry.why == "older"]
    others = [entry for entry in entries if entry.why != "older"]
    wide = min(max((len(other.candidate.path.name) for other in others[:_SHOWN]), default=0), 40)
    for other in others[:_SHOWN]:
        state = other.candidate.verdict.state
        line = Text(f"  {shortened(other.candidate.path.name, wide).ljust(wide)}  ", no_wrap=True)
        line.append(state.ljust(12), STYLES[state])
        first, *rest = folded(other.why, width - line.cell_len, "")
        yield line.copy().append(first)
        yield from (Text(" " * line.cell_len + more, no_wrap=True) for more in rest)
    if len(others) > _SHOWN:
        yield Text(f"  and {len(others) - _SHOWN:,} more; --json has all", style="dim")
    if older:
        yield Text(f"  {len(older):,} older clean checkpoint{'s' if len(older) > 1 else ''}", style="dim")
