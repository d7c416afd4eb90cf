"""`holdfast stats`: what is in data: counts, classes, sizes, positions, values; as bars here and as plots on a page."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.data_options import Also, DataPath, Format, Jobs, Label, NoCache, TokenizerFile, Tree
from holdfast.cli.options import AsJson


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("stats")(stats)


def stats(
    path: DataPath,
    format: Format = None,
    classes: Annotated[list[str] | None, typer.Option("--class", help="Only this class. Repeatable.", show_default=False)] = None,
    pixels: Annotated[bool, typer.Option("--pixels", help="Also decode the images: mean and deviation of each channel.")] = False,
    label: Label = None,
    tree: Tree = None,
    tokenizer: TokenizerFile = None,
    as_json: AsJson = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with plots to this file.", show_default=False)] = None,
    jobs: Jobs = 0,
    also: Also = None,
    no_cache: NoCache = False,
) -> None:
    """Count what is in a data set: samples by split and class, sizes, positions, objects per image, values, co-occurrence.

    Exit code 1: files could not be read; they are named, and the rest is counted. `holdfast validate` finds problems.
    """
    from holdfast.cli.data_progress import Bar
    from holdfast.cli.stats_show import show
    from holdfast.data.cache import cache_folder
    from holdfast.data.formats.detect import Settings
    from holdfast.data.stats.take import take_statistics

    settings = Settings(
        format=format, jobs=jobs, pixels=pixels, label=label, tree=tree, tokenizer=tokenizer,
        classes=frozenset(classes or ()), also=tuple(also or ()), cache=None if no_cache else cache_folder(),
    )  # fmt: skip
    warnings.simplefilter("ignore")  # decoders warn about odd files in words of their own
    with Bar() as bar:
        try:
            statistics = take_statistics(path, settings, bar.advance)
        except KeyboardInterrupt:
            bar.tell_stopped(kept=not no_cache)
            raise
    if as_json:
        from holdfast.cli.show import for_json

        print(json.dumps(for_json(statistics.as_row()), ensure_ascii=False))
    else:
        show(statistics)
    if html is not None:
        from holdfast.data.stats.take import page

        _write(html, page(statistics))
    if statistics.unreadable_count:
        raise typer.Exit(1)


def _write(path: Path, content: str) -> None:
    from holdfast.errors import StorageError

    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}", fix="name a place that can be written") from None
    print(f"wrote {path}: the plots", file=sys.stderr)
