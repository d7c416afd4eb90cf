"""`holdfast export`: a trained model for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("export")(export)


def export(
    run: Annotated[str | None, typer.Argument(help="Name or folder of the run; default: the newest.", show_default=False)] = None,
    format: Annotated[str, typer.Option(help="File format: onnx.")] = "onnx",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Default: model.onnx in the run's folder.", show_default=False),
    ] = None,
    tolerance: Annotated[float, typer.Option(help="Largest difference from the trained model's output.")] = 1e-3,
    folder: Annotated[Path, typer.Option(help="Folder that holds the runs.")] = Path("runs"),
) -> None:
    """Write the best model of a `holdfast train` run as ONNX with a dynamic batch, checked against the model's own output."""
    from holdfast.cli.resume import run_folder
    from holdfast.train.export import export_onnx
    from holdfast.train.settings import read_settings
    from holdfast.train.tasks import settings_of

    if format != "onnx":
        raise UsageError(f"there is no format {format!r}.", fix="--format onnx")
    source = run_folder(run, folder)
    kind, kept = settings_of(source)
    made = kind.exportable(source, read_settings(kind.settings, None, kept))
    path = output if output is not None else source / "model.onnx"
    difference = export_onnx(made, path, tolerance=tolerance)
    print(f"{path}: {made.inputs} -> {made.described}")
    print(f"largest difference from the trained model: {difference:.2g}")
