"""`holdfast checkpoints compare`: does a checkpoint fit a model, or another checkpoint; what differs; what to type."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import AsJson
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from holdfast.matching.compare import Comparison
    from holdfast.matching.sides import Side

_FACTORY = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")
_SETTINGS_SHOWN = 12
_SHAPES_SHOWN = 3


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("compare")(compare)


def compare(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CKPT", help="A checkpoint file or folder of any format, or a run (its newest).")
    ],
    second: Annotated[
        str | None,
        typer.Argument(
            metavar="CKPT|MODEL",
            help="Another checkpoint, package.module:factory, or a YAML file that names one.",
            show_default=False,
        ),
    ] = None,
    other: Annotated[
        str | None, typer.Option("--with", metavar="CKPT|MODEL", help="Same as the second argument.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare a checkpoint with a model or another checkpoint: what differs, what it means, and how to fix it.

    MODEL is built without arguments in the current folder, which imports your module. A YAML file has `model:
    package.module:factory` and optionally `arguments:`; the rest are settings to compare. Exit code 0: it fits, as it is or
    after a safe rename; 1: it does not.
    """
    from holdfast.cli.show import for_json
    from holdfast.matching.compare import compare as find

    if (second is None) == (other is None):
        number = "one checkpoint to compare" if other is None else f"both {second} and {other} to compare with"
        raise UsageError(f"there is {number}.", fix=f"name two: holdfast checkpoints compare {checkpoint} OTHER")
    comparison = find(_checkpoint(checkpoint), _other(second or other or ""))
    if as_json:
        print(json.dumps(for_json(comparison.as_row()), ensure_ascii=False))
    else:
        show(comparison)
    raise typer.Exit(0 if comparison.fits else 1)


def _other(text: str) -> Side:
    from holdfast.cli.checkpoints.model import model_side, side_from_yaml

    path = Path(text)
    if path.suffix.lower() in (".yaml", ".yml") and (path.is_file() or not path.exists()):
        return side_from_yaml(path)
    if _FACTORY.match(text) and not path.exists():
        return model_side(text)
    return _checkpoint(path)


def _checkpoint(path: Path) -> Side:
    """One side from a checkpoint. Raises BadCheckpoint where nothing can be read of it."""
    from holdfast.checkpoints.formats.open import open_checkpoint
    from holdfast.cli.checkpoints.paths import as_typed, refuse_server, run_named
    from holdfast.cli.checkpoints.run_history import checkpoints_of
    from holdfast.errors import BadCheckpoint
    from holdfast.matching.from_contents import side_of

    refuse_server(str(path))
    run = run_named(str(path))
    own = sorted(checkpoints_of(run), key=lambda file: file.stat().st_mtime) if run is not None else []
    path = as_typed(own[-1]) if own else path
    contents = open_checkpoint(path)
    side = side_of(contents)
    if contents.troubles and not side.weights and not side.averages:
        trouble = contents.troubles[0]
        raise BadCheckpoint(f"{path} is {trouble.state}: {trouble.text}", fix=trouble.fix)
    return side


def show(comparison: Comparison) -> None:
    """The verdict, what differs, and what to type."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from holdfast.cli.output import output

    console = output()
    console.print(Text(comparison.verdict, style="bold green" if comparison.fits else "bold red"))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text, style in lines(comparison):
        table.add_row(label, Text(text, style=style))
    console.print(Padding(table, (1, 0, 0, 2), expand=False))
    _what_to_type(console, comparison)


def lines(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    """Label, words and style of each line of the table."""
    matched = comparison.matched
    yield "checkpoint", _described(comparison.checkpoint), ""
    yield "with", _described(comparison.other), ""
    yield "weights", _counts(comparison), ""
    if matched.rename.words:
        yield "names", f"fit after {matched.rename.words}", "" if matched.rename.is_safe else "red"
    for difference in comparison.differences:
        if difference.stops:
            yield difference.kind, difference.words, "red" if difference.stops == "weights" else "yellow"
            shapes = [name for name in difference.names if name in matched.shapes]
            for name in shapes[:_SHAPES_SHOWN]:
                here, there = matched.shapes[name]
                yield "", f"  {name} {list(here)} in {comparison.labels.one}, {list(there)} in {comparison.labels.other}", "dim"
            if len(shapes) > _SHAPES_SHOWN:
                yield "", f"  and {len(shapes) - _SHAPES_SHOWN:,} more", "dim"
    harmless = [difference for difference in comparison.differences if not difference.stops]
    for difference in harmless[:_SETTINGS_SHOWN]:
        yield difference.kind, difference.words, ""
    if len(harmless) > _SETTINGS_SHOWN:
        yield "", f"and {len(harmless) - _SETTINGS_SHOWN:,} more; --json has all", "dim"
    for note in comparison.notes:
        yield "note", note, "dim"


def _described(side: Side) -> str:
    """Its name, and where in the training it was saved and what it holds."""
    if side.is_model:
        once = {weight.same_as: weight.count for weight in side.weights.values() if not weight.is_buffer}
        return f"{side.name}, a model of {sum(once.values()):,} parameters"
    parts = [f"{word} {value:,}" for word, value in (("step", side.step), ("epoch", side.epoch)) if value is not None]
    held = [
        part for part in ("weights", "ema", "optimizer", "scheduler", "scaler", "rng", "loader", "settings") if part in side.holds
    ]
    return ", ".join([side.name, *parts, "holds " + " ".join(held)])


def _counts(comparison: Comparison) -> str:
    matched = comparison.matched
    counts = [f"{len(matched.pairs):,} fit"]
    for count, what in (
        (len(matched.shapes), "with a different shape"),
        (len(matched.kinds), "of a different type"),
        (len(matched.missing), f"only in {comparison.labels.other}"),
        (len(matched.unexpected), f"only in {comparison.labels.one}"),
    ):
        if count:
            counts.append(f"{count:,} {what}")
    return ", ".join(counts)


def _what_to_type(console: Console, comparison: Comparison) -> None:
    from rich.text import Text

    if not comparison.fits:
        fixes = dict.fromkeys(difference.fix for difference in comparison.differences if difference.stops and difference.fix)
        console.print(Text("\nwhat to do:", style="bold"))
        for fix in fixes:
            console.print(Text(f"  - {fix}"))
    if comparison.calls:
        heading = (
            "what to type" if comparison.fits else "what loads the weights" if comparison.weights_fit else "what loads the rest"
        )
        console.print(Text(f"\n{heading}:", style="bold"))
        for call in comparison.calls:
            console.print(Text(f"  {call}"), soft_wrap=True)
