"""`holdfast export`: a trained model for other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.errors import HoldfastError, UsageError

if TYPE_CHECKING:
    import torch

    from holdfast.train.settings import DetectSettings

_IMAGES = 3  # with which the file is checked


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
    from holdfast.train.detect.architectures import build
    from holdfast.train.export import export_detector
    from holdfast.train.settings import DetectSettings as Settings
    from holdfast.train.settings import read_settings

    if format != "onnx":
        raise UsageError(f"there is no format {format!r}.", fix="--format onnx")
    source = run_folder(run, folder)
    settings = read_settings(Settings, source / "settings.yaml", {})
    config = source / "model" / "config.json"
    if not config.exists():
        raise UsageError(f"{source} has no finished model yet.", fix=f"holdfast resume {source}, then export it")
    labels = json.loads(config.read_text(encoding="utf-8"))["id2label"]
    classes = [labels[number] for number in sorted(labels, key=int)]
    built = build(settings.architecture, classes=classes, imgsz=settings.imgsz, weights=str(source / "model"), dropout=0.0)
    path = output if output is not None else source / "model.onnx"
    difference = export_detector(
        built.model, path, imgsz=settings.imgsz, classes=classes, tolerance=tolerance, images=_validation_images(settings)
    )
    print(f"{path}: images B×3×{settings.imgsz}×{settings.imgsz} -> boxes, scores of {len(classes)} classes")
    print(f"largest difference from the trained model: {difference:.2g}")


def _validation_images(settings: DetectSettings) -> torch.Tensor | None:
    """Images that the model was made for; None where the data is not there any more."""
    import torch

    from holdfast.train.detect.boxes import open_boxes
    from holdfast.train.detect.dataset import DetectionData

    try:
        data = DetectionData(open_boxes(settings.data), "val", imgsz=settings.imgsz)
        return torch.stack([data[place % len(data)]["image"] for place in range(_IMAGES)]).float() / 255
    except HoldfastError:
        return None
