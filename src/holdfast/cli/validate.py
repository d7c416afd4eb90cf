"""`holdfast validate`: what is wrong with data, before a training is spent on it."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.data_options import Also, DataPath, EmbeddingRows, Format, Jobs, Label, NoCache, TokenizerFile, Tree
from holdfast.cli.options import AsJson
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.data.validate import Report, Settings


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("validate")(validate)


def validate(
    path: DataPath,
    format: Format = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 on warnings too.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Check headers, structure and labels only; decode nothing.")] = False,
    every: Annotated[bool, typer.Option("--all", help="List every case with its file, not one example.")] = False,
    label: Label = None,
    tree: Tree = None,
    tokenizer: TokenizerFile = None,
    rows: EmbeddingRows = None,
    fix: Annotated[bool, typer.Option("--fix", help="Write a cleaned list or data.yaml beside the original.")] = False,
    fix_into: Annotated[Path | None, typer.Option("--fix-into", help="The same, into this folder.", show_default=False)] = None,
    quarantine: Annotated[
        Path | None,
        typer.Option("--quarantine", help="Write the list of samples to skip to this file.", show_default=False),
    ] = None,
    as_json: AsJson = False,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write the report as an HTML page to this file.", show_default=False)
    ] = None,
    jobs: Jobs = 0,
    also: Also = None,
    benchmark: Annotated[
        bool, typer.Option("--benchmark", help="Measure the speed of the loader with different settings instead.")
    ] = False,
    time_limit: Annotated[float, typer.Option("--time-limit", min=5, help="Time limit of --benchmark in seconds.")] = 60.0,
    memory_limit: Annotated[
        float | None,
        typer.Option("--memory-limit", min=0, help="Memory limit of the loader in GB.", show_default="80 % of free memory"),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, help="Batch size for --benchmark without a DataLoader.", show_default=False),
    ] = None,
    no_cache: NoCache = False,
) -> None:
    """Find problems in a data set: broken images, bad labels, NaN, duplicates, leaks between splits.

    The data is not changed. Exit code 1: a critical finding; with --strict also a warning.
    """
    if benchmark:
        if strict or quick or fix or fix_into or quarantine or html or format or tree or also:
            raise UsageError("--benchmark measures and checks nothing", fix="drop the options of the checks, or drop --benchmark")
        from holdfast.cli.validate_benchmark import measure_loader

        measure_loader(path, batch=batch, seconds=time_limit, memory=memory_limit, as_json=as_json)
        return
    from holdfast.data.cache import cache_folder
    from holdfast.data.validate import Settings

    settings = Settings(
        format=format, jobs=jobs, quick=quick, label=label, tree=tree, tokenizer=tokenizer, embedding_rows=rows,
        also=tuple(also or ()), cache=None if no_cache else cache_folder(),
    )  # fmt: skip
    report = _look(path, settings)
    _show(report, as_json=as_json, every=every)
    _write(report, path, settings, fix=fix, fix_into=fix_into, quarantine=quarantine, html=html)
    if report.count("critical") or (strict and report.count("warning")):
        raise typer.Exit(1)


def _look(path: str, settings: Settings) -> Report:
    """Look at the data, with a bar."""
    from holdfast.cli.data_progress import Bar
    from holdfast.data.validate import validate as look

    warnings.simplefilter("ignore")  # decoders warn about odd files in words of their own
    with Bar() as bar:
        try:
            return look(path, settings, bar.advance)
        except KeyboardInterrupt:
            bar.tell_stopped(kept=settings.cache is not None)
            raise


def _show(report: Report, *, as_json: bool, every: bool) -> None:
    if as_json:
        from holdfast.cli.show import for_json

        row = report.as_row()
        for problem, shown in zip(report.problems, row["problems"], strict=True):
            shown["cases"] = problem.every_case() if every else []
        print(json.dumps(for_json(row), ensure_ascii=False))
    else:
        from holdfast.cli.data_words import show

        show(report, every=every)


def _write(
    report: Report,
    path: str,
    settings: Settings,
    *,
    fix: bool,
    fix_into: Path | None,
    quarantine: Path | None,
    html: Path | None,
) -> None:
    """Write what was asked for, and say what was written."""
    from holdfast.data.cleaned import write_cleaned, write_quarantine

    if html is not None:
        from holdfast.data.validate import page

        _write_file(html, "the report", page(report))
    if quarantine is not None:
        count = write_quarantine(report, path, settings, quarantine)
        print(f"wrote {quarantine}: {count:,} entries to skip", file=sys.stderr)
    if fix or fix_into is not None:
        for line in write_cleaned(report, path, settings, fix_into):
            print(line, file=sys.stderr)


def _write_file(path: Path, content_kind: str, content: str) -> None:
    from holdfast.errors import StorageError

    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}", fix="name a place that can be written") from None
    print(f"wrote {path}: {content_kind}", file=sys.stderr)
