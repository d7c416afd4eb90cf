"""`holdfast visualize`: look at data, the suspicious samples first."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.data_options import Also, DataPath, EmbeddingRows, Format, Jobs, Label, NoCache, TokenizerFile, Tree
from holdfast.cli.options import AsJson

if TYPE_CHECKING:
    from holdfast.data.scan import Progress
    from holdfast.data.validate import Settings
    from holdfast.data.visualize.sample import Wish
    from holdfast.data.visualize.visualize import Drawn


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("visualize")(visualize)


def visualize(
    path: DataPath,
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, max=1000, help="Number of samples.")] = 50,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the random selection.")] = 0,
    classes: Annotated[list[str] | None, typer.Option("--class", help="Only samples with this class. Repeatable.")] = None,
    findings: Annotated[list[str] | None, typer.Option("--finding", help="Only samples with this finding. Repeatable.")] = None,
    format: Format = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Page to write. (default: NAME-samples.html)", show_default=False),
    ] = None,
    label: Label = None,
    tree: Tree = None,
    tokenizer: TokenizerFile = None,
    rows: EmbeddingRows = None,
    augmented: Annotated[
        bool, typer.Option("--augmented", help="Detection: training images as `holdfast train detect` augments them, as a PNG.")
    ] = False,
    as_json: AsJson = False,
    jobs: Jobs = 0,
    also: Also = None,
    no_cache: NoCache = False,
) -> None:
    """Draw samples with their boxes, masks or values on one page, the suspicious ones first.

    Each sample shows the findings of `holdfast validate`. The data is not changed.
    """
    if augmented:
        _augmented(path, samples, seed, output, format, chooses=bool(classes or findings), as_json=as_json)
        return
    from holdfast.data.cache import cache_folder
    from holdfast.data.validate import Settings
    from holdfast.data.visualize.sample import Wish

    settings = Settings(
        format=format, jobs=jobs, label=label, tree=tree, tokenizer=tokenizer, embedding_rows=rows, also=tuple(also or ()),
        cache=None if no_cache else cache_folder(),
    )  # fmt: skip
    wish = Wish(samples=samples, seed=seed, classes=tuple(classes or ()), findings=tuple(findings or ()))
    drawn = _drawn(path, settings, wish, output)
    if as_json:
        from holdfast.cli.show import for_json

        print(json.dumps(for_json(drawn.as_row()), ensure_ascii=False))
    else:
        _show(drawn)


def _drawn(path: str, settings: Settings, wish: Wish, output: Path | None) -> Drawn:
    """Draw, with a progress bar for each look at the data."""
    from holdfast.cli.data_progress import Bar
    from holdfast.data.visualize.visualize import visualize as draw

    warnings.simplefilter("ignore")  # decoders warn about odd files in words of their own
    bars: list[Bar] = []
    with contextlib.ExitStack() as stack:

        def looks() -> Progress:
            stack.close()
            bars.append(stack.enter_context(Bar()))
            return bars[-1].advance

        try:
            return draw(path, settings, wish, output, looks)
        except KeyboardInterrupt:
            if bars:
                bars[-1].tell_stopped(kept=settings.cache is not None)
            raise


def _augmented(
    path: str, samples: int, seed: int, output: Path | None, format: str | None, *, chooses: bool, as_json: bool
) -> None:
    """Draw what the trainer sees."""
    from holdfast.cli.checkpoints.layout import name_of
    from holdfast.errors import UsageError
    from holdfast.train.detect.preview import draw_augmented

    if chooses:
        raise UsageError("--augmented draws any training images.", fix="drop --class and --finding")
    file, count = draw_augmented(path, samples=samples, seed=seed, output=output, format=format)
    if as_json:
        print(json.dumps({"path": path, "samples": count, "seed": seed, "file": str(file)}))
    else:
        print(f"wrote {name_of(file)}: {count:,} training images as the model gets them", file=sys.stderr)


def _show(drawn: Drawn) -> None:
    """What was drawn on stdout; where it is, in the last line on stderr."""
    from rich.text import Text

    from holdfast.cli.checkpoints.layout import name_of, page

    console = page()
    severities = {mark.code: mark.severity for sample in drawn.samples for mark in reversed(sample.marks)}
    styles = {"critical": "bold red", "warning": "yellow", "info": "cyan"}
    width = max(map(len, drawn.by_finding), default=0)
    for code, count in drawn.by_finding.items():
        line = Text(severities[code].ljust(10), styles[severities[code]]).append(f"{code:{width}}  ", "bold")
        console.print(line.append(f"{count:,} drawn", "not bold default"), soft_wrap=True)
    others = sum(not sample.marks for sample in drawn.samples)
    if others:
        console.print(Text(f"{'':10}{others:,} drawn without findings, from all splits and classes (seed {drawn.wish.seed})"))
    for note in drawn.notes:
        console.print(Text(f"note: {note}", "dim"))
    sys.stdout.flush()
    print(f"wrote {name_of(drawn.page)}: {len(drawn.samples):,} samples", file=sys.stderr)
