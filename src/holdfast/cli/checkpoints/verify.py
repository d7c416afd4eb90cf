"""`holdfast checkpoints verify`: read every byte, and say whether a checkpoint can be trusted."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.checkpoints.paths import Paths, chosen
from holdfast.cli.options import AsJson, Targets, all_of

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.checkpoints.contents import Contents
    from holdfast.checkpoints.verify import Verdict

_NAMED = 10  # bad tensors that are listed
_INDENT = " " * 12
_STATE = 12


def register(group: typer.Typer) -> None:
    """Add the verb."""
    group.command("verify")(verify)


def verify(
    paths: Paths = None,
    target: Targets = None,
    as_json: AsJson = False,
    every: Annotated[bool, typer.Option("--all", help="List every bad tensor, not only ten.")] = False,
) -> None:
    """Read every byte of checkpoints: are they complete, undamaged, finite and safe to load?

    No code from a checkpoint is run. The state is clean, non-finite, torn, unreadable or unsafe. Exit code 1: one is not clean.
    """
    from holdfast.cli.checkpoints.layout import page
    from holdfast.cli.checkpoints.progress import Bar

    console, started = page(), time.perf_counter()
    verdicts: list[Verdict] = []
    rows = []
    with Bar(chosen(all_of(paths, target))) as bar:
        for contents, verdict in bar.verified():
            verdicts.append(verdict)
            rows.append(as_row(contents, verdict))
            if not as_json:
                bar.above(lambda: show(console, contents, verdict, every=every))  # noqa: B023 - called at once
    if as_json:
        from holdfast.cli.show import for_json

        print(json.dumps(for_json(rows), ensure_ascii=False))
    else:
        print(totals(verdicts, time.perf_counter() - started), file=sys.stderr)
    if any(verdict.state != "clean" for verdict in verdicts):
        raise typer.Exit(1)


def as_row(contents: Contents, verdict: Verdict) -> dict[str, object]:
    """Everything that is known, for --json."""
    from holdfast.cli.checkpoints.layout import in_one_row

    return {**in_one_row(contents), **verdict.as_row(), "refused": contents.refused}


def show(console: Console, contents: Contents, verdict: Verdict, *, every: bool = False) -> None:
    """One line with the state, and under it what is wrong and what to do."""
    from rich.text import Text

    from holdfast.cli.checkpoints.layout import STYLES, name_of, trouble_lines

    line = Text(no_wrap=True).append(verdict.state.ljust(_STATE), STYLES[verdict.state]).append(name_of(verdict.path))
    facts = facts_about(contents, verdict)
    beside = console.width - line.cell_len - 2
    if len(facts) <= beside:
        line.append(f"  {facts}", "dim")
    console.print(line, soft_wrap=True)
    if len(facts) > beside:
        console.print(Text(_INDENT + facts, "dim"), soft_wrap=True)
    by_state = [trouble for trouble in verdict.troubles if trouble.state != "non-finite"]
    for text, style in trouble_lines(by_state, verdict.path, console.width, _INDENT):
        console.print(Text(text, style), soft_wrap=True)
    _show_bad(console, verdict, every=every)
    for note in [*verdict.notes, *_code_note(contents)]:
        _print(console, f"note: {note}", "dim")


def _code_note(contents: Contents) -> list[str]:
    """Classes that are not known to be harmless: they are made without a call, by code of packages that nobody here has read."""
    from holdfast.checkpoints.formats.files import few

    foreign = [name for name in contents.needs_code if not name.startswith("torch.")]
    return [f"a full load runs the code of {few(foreign)}; weights_only=True does not"] if foreign else []


def facts_about(contents: Contents, verdict: Verdict) -> str:
    """Size, tensors, and what the format allows to be said."""
    from holdfast.units import count, size

    facts = [size(contents.size)] if contents.files else []
    if verdict.tensors:
        facts.append(count(verdict.tensors, "tensor"))
    if verdict.state == "clean":
        some = any(storage.crc32 is not None for storage in contents.storages)
        without = "all finite; not all of it has checksums" if some else "all finite; it has no checksums"
        facts.append("checksums match" if verdict.checked else without)
    return ", ".join(facts)


def _show_bad(console: Console, verdict: Verdict, *, every: bool) -> None:
    from rich.text import Text

    from holdfast.checkpoints.verify import amounts
    from holdfast.cli.checkpoints.layout import fix_of, shortened

    non_finite = [trouble for trouble in verdict.troubles if trouble.state == "non-finite"]
    for trouble in non_finite:
        _print(console, trouble.text)
    shown = verdict.bad if every else verdict.bad[:_NAMED]
    widest = min(max((len(tensor.name) for tensor in shown), default=0), max(20, console.width - 50))
    for tensor in shown:
        line = Text(f"{_INDENT}  {shortened(tensor.name, widest).ljust(widest)}  ", no_wrap=True)
        console.print(line.append(f"{amounts(tensor.nan, tensor.inf)} of {tensor.count:,}", "red"), soft_wrap=True)
    if len(verdict.bad) > len(shown):
        console.print(Text(f"{_INDENT}  and {len(verdict.bad) - len(shown):,} more: --all lists them", "dim"))
    fixes = {trouble.fix for trouble in verdict.troubles if trouble not in non_finite}
    for trouble in non_finite:
        if trouble.fix not in fixes:
            _print(console, f"fix: {fix_of(trouble, verdict.path)}", "cyan")


def _print(console: Console, text: str, style: str = "") -> None:
    from rich.text import Text

    from holdfast.cli.checkpoints.layout import folded

    for line in folded(text, console.width, _INDENT, hang="     " if text.startswith("fix: ") else ""):
        console.print(Text(line, style), soft_wrap=True)


def totals(verdicts: list[Verdict], seconds: float) -> str:
    """The last line: how many of each state, how much was read and how fast."""
    from holdfast.checkpoints.contents import WORST_LAST
    from holdfast.cli.show import duration, size

    counts = [(state, sum(verdict.state == state for verdict in verdicts)) for state in WORST_LAST]
    states = ", ".join(f"{count} {state}" for state, count in counts if count)
    read = sum(verdict.bytes_read for verdict in verdicts)
    reading = sum(verdict.seconds for verdict in verdicts)
    speed = f", {size(read / reading)}/s" if read > 1e8 and reading > 0 else ""
    checkpoints = "checkpoint" if len(verdicts) == 1 else "checkpoints"
    return f"{len(verdicts)} {checkpoints}: {states}; {size(read)} read in {duration(seconds)}{speed}"
