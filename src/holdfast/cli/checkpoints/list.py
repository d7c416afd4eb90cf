"""`holdfast checkpoints list`: what there is, how far each had come, how good it is, and whether it can be trusted."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.checkpoints.paths import Paths, chosen, opened
from holdfast.cli.options import AsJson, Targets, all_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from holdfast.checkpoints.contents import Contents, State, Trouble
    from holdfast.checkpoints.summary import Summary
    from holdfast.checkpoints.verify import Verdict

_READ = 20 << 30  # bytes that are read without being asked
_SHORT = {"optimizer": "optim", "scheduler": "sched"}
_BESIDE = ("optimizer", "scheduler", "scaler", "rng", "loader", "ema")
_NAME = 26  # columns that a name should have
_HOLDS, _NARROWEST = 23, 14  # for what it holds: in one line, and where the name needs room


@dataclass(frozen=True, slots=True)
class Line:
    """A checkpoint of the list; `verdict` is None where its bytes were not read."""

    contents: Contents
    summary: Summary
    verdict: Verdict | None

    @property
    def state(self) -> State:
        """Its state as far as it was looked at."""
        return self.verdict.state if self.verdict is not None else self.contents.state

    @property
    def troubles(self) -> Sequence[Trouble]:
        """What is wrong with it."""
        return self.verdict.troubles if self.verdict is not None else self.contents.troubles

    @property
    def order(self) -> tuple[Any, ...]:
        """The oldest of a folder first: by step, then by epoch, then by time."""
        step, epoch = self.summary.step, self.summary.epoch
        has_position = step is not None or epoch is not None
        first = step if step is not None else epoch if epoch is not None else 0
        return str(self.contents.path.parent), not has_position, first, self.summary.saved_at or 0.0, str(self.contents.path)

    def as_row(self) -> dict[str, Any]:
        """For --json."""
        from holdfast.cli.checkpoints.layout import in_one_row

        bad = {tensor.name: tensor.nan + tensor.inf for tensor in self.verdict.bad} if self.verdict is not None else None
        return {
            **in_one_row(self.contents),
            **self.summary.as_row(),
            "state": self.state,
            "verified": self.verdict is not None,
            "non_finite": bad,
            "troubles": [{"state": trouble.state, "words": trouble.text, "fix": trouble.fix} for trouble in self.troubles],
        }


def register(group: typer.Typer) -> None:
    """Add the verb."""
    group.command("list")(list_checkpoints)


def list_checkpoints(
    paths: Paths = None,
    target: Targets = None,
    as_json: AsJson = False,
    quick: Annotated[bool, typer.Option("--quick", help="Read indexes only: detects torn files, not NaN or damage.")] = False,
) -> None:
    """List checkpoints: step, epoch, metric, age, contents, and whether each is complete and finite.

    Reads every byte, newest first, up to 20 GB. No code from a checkpoint is run. Exit code 1: a checkpoint is not clean.
    """
    lines = gather(chosen(all_of(paths, target)), read=0 if quick else _READ)
    if as_json:
        from holdfast.cli.show import for_json

        print(json.dumps(for_json([line.as_row() for line in lines]), ensure_ascii=False))
    else:
        show(lines)
        _say_what_was_not_read(lines, quick=quick)
    if any(line.state != "clean" for line in lines):
        raise typer.Exit(1)


def gather(paths: list[Path], *, read: int) -> list[Line]:
    """All of them, the oldest first; the bytes of the newest are read, up to so many."""
    from holdfast.checkpoints.summary import summarise
    from holdfast.cli.checkpoints.progress import Bar

    every = list(opened(paths))
    every.sort(key=lambda contents: contents.modified, reverse=True)
    wanted, left = [], read
    for contents in every:
        fits = 0 < contents.size <= left
        left -= contents.size if fits else 0
        wanted.append(fits)
    total = sum(contents.size for contents, fits in zip(every, wanted, strict=True) if fits)
    lines = []
    with Bar([]) as bar:
        for contents, fits in zip(every, wanted, strict=True):
            lines.append(Line(contents, summarise(contents), bar.verify(contents, of=total) if fits else None))
    return sorted(lines, key=lambda line: line.order)


def show(lines: list[Line]) -> None:
    """The table, and under it what is wrong with those that are not clean."""
    from rich.text import Text

    from holdfast.cli.checkpoints.layout import STYLES, name_of, page, trouble_lines

    console = page()
    console.print(table_of(lines, console))
    for line in lines:
        if line.state == "clean":
            continue
        console.print()
        name = name_of(line.contents.path)
        console.print(Text.assemble((name, "bold"), " is ", (line.state, STYLES[line.state])), soft_wrap=True)
        for text, style in trouble_lines(line.troubles, line.contents.path, console.width, "  "):
            console.print(Text(text, style), soft_wrap=True)


def table_of(lines: list[Line], console: Console) -> Table:
    """One row for each; empty columns are dropped, and the name gets the remaining width."""
    from rich.table import Table
    from rich.text import Text

    from holdfast.cli.checkpoints.layout import name_of, shortened

    columns = _columns(lines)
    widths = [max(len(title), *(cell.cell_len for cell in cells)) for title, cells in columns]
    widths[-1] = min(widths[-1], _HOLDS)
    missing = _NAME - (console.width - sum(widths) - 2 * len(widths))
    widths[-1] = max(_NARROWEST, widths[-1] - max(0, missing))
    common = _common_folder(lines)
    names = [name_of(line.contents.path.relative_to(common) if common else line.contents.path) for line in lines]
    room = max(1, console.width - sum(widths) - 2 * len(widths))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", width=console.width)
    where = shortened(f"in {name_of(common)}/", room) if common else "checkpoint"
    table.add_column(Text(where), no_wrap=True, ratio=1)
    for (title, _), width in zip(columns, widths, strict=True):
        right = title in ("size", "step", "epoch") or title == columns[-4][0]
        table.add_column(
            Text(title), justify="right" if right and title != "state" else "left", no_wrap=title != "holds", width=width
        )
    for number, name in enumerate(names):
        table.add_row(Text(shortened(name, room)), *(cells[number] for _, cells in columns))
    return table


def _common_folder(lines: list[Line]) -> Path | None:
    """The folder that all of them are in, if its name would only stand before each."""
    parents = [str(line.contents.path.parent) for line in lines]
    alike = len(set(map(os.path.isabs, parents))) == 1
    common = os.path.commonpath(parents) if alike else ""
    return Path(common) if common not in ("", ".", "/") else None


def _columns(lines: list[Line]) -> list[tuple[str, list[Text]]]:
    """Title and cells of each column but the name."""
    from rich.text import Text

    from holdfast.cli.checkpoints.layout import age
    from holdfast.cli.show import number, size

    columns = [("size", [Text(size(line.contents.size)) for line in lines])]
    if any(line.summary.step is not None for line in lines):
        columns.append(("step", [Text(number(line.summary.step)) for line in lines]))
    if any(line.summary.epoch is not None for line in lines):
        columns.append(("epoch", [Text(number(line.summary.epoch)) for line in lines]))
    columns += _metric_column(lines)
    columns.append(("saved", [Text(age(line.summary.saved_at)) for line in lines]))
    columns.append(("state", [_state(line) for line in lines]))
    columns.append(("holds", [Text(holds(line.summary)) for line in lines]))
    return columns


def _metric_column(lines: list[Line]) -> list[tuple[str, list[Text]]]:
    """The metric that most have: its name as the title. A checkpoint with another metric shows its name."""
    from rich.text import Text

    from holdfast.cli.checkpoints.layout import shortened
    from holdfast.cli.show import number

    metrics = [line.summary.metric for line in lines]
    counts = Counter(metric[0] for metric in metrics if metric is not None)
    if not counts:
        return []
    usual = counts.most_common(1)[0][0]
    cells = []
    for line, metric in zip(lines, metrics, strict=True):
        same = line.summary.metrics.get(usual)
        if same is not None or metric is None:
            cells.append(Text(number(same)))
        else:
            cells.append(Text(f"{shortened(metric[0], 10)} {number(metric[1])}"))
    return [(shortened(usual, 14), cells)]


def _state(line: Line) -> Text:
    from rich.text import Text

    from holdfast.cli.checkpoints.layout import STYLES

    word = line.state
    if word == "clean" and line.verdict is None:
        return Text("not read", "dim")
    return Text(word, STYLES[word])


def holds(summary: Summary) -> str:
    """What can be restored from it, in short words."""
    beside = [_SHORT.get(part, part) for part in _BESIDE if part in summary.holds]
    if "weights" in summary.holds:
        return " ".join(["weights", *beside]) if beside else "weights only"
    if beside == ["ema"]:
        return "averaged weights only"
    return " ".join(beside) if beside else "–"


def _say_what_was_not_read(lines: list[Line], *, quick: bool) -> None:
    from holdfast.cli.show import size

    left = [line.contents.size for line in lines if line.verdict is None and line.state == "clean"]
    if left and quick:
        print(f"indexes only: {len(left)} of {len(lines)} are complete; NaN and Inf were not checked", file=sys.stderr)
    elif left:
        note = f"{len(left)} of {len(lines)} were not read ({size(sum(left))}): holdfast checkpoints verify reads everything"
        print(note, file=sys.stderr)
