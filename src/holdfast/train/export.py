"""`holdfast export`: a trained model as an ONNX file for any batch size, checked against the model's own output."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.errors import DoesNotMatch, UsageError
from holdfast.train.extras import required

_BATCHES = (1, 3)  # the file is checked with each; it is made with another one
_COMPARED = 100


class Detector(nn.Module):
    """A detection model of `transformers` as a function of images: B×3×S×S with values from 0 to 1."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Boxes B×N×4 (centre, width and height as fractions of the image), and the score of each class B×N×C."""
        outputs = self.model(pixel_values=images)
        return outputs.pred_boxes, outputs.logits.sigmoid()


def export_detector(
    model: nn.Module,
    path: Path,
    *,
    imgsz: int,
    classes: Sequence[str],
    tolerance: float = 1e-3,
    images: torch.Tensor | None = None,
) -> float:
    """Write a model that is on the CPU as ONNX: `images` to `boxes` and `scores`; class names are in the file's metadata.

    Returns the largest difference between its outputs and those of onnxruntime on `images`, without them on noise. The file
    gets its name once it has been checked: a difference above `tolerance` is an error, and no file is left.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        required(package, extra="export")
    detector, shown = Detector(model).eval(), _images(max(_BATCHES), imgsz) if images is None else images
    unchecked = path.with_name(f".{path.name}.unchecked")
    try:
        with _quiet(), torch.no_grad():
            program = _converted(detector, imgsz)
            program.model.metadata_props.update({"classes": json.dumps(list(classes)), "imgsz": str(imgsz)})
            program.save(unchecked)
        difference = torch.stack([_difference(detector, unchecked, shown[:batch]) for batch in _BATCHES]).max().item()
        if not difference <= tolerance:  # NaN is an error as well
            raise DoesNotMatch(
                f"the exported model differs from the trained one by {difference:.2g} (allowed: {tolerance:g}).",
                fix=f"holdfast export --tolerance {2 * difference:.1g}, if such a difference does no harm",
            )
        unchecked.replace(path)
    finally:
        unchecked.unlink(missing_ok=True)
    return difference


def _images(batch: int, imgsz: int) -> torch.Tensor:
    return torch.rand(batch, 3, imgsz, imgsz, generator=torch.Generator().manual_seed(batch))


def _converted(detector: Detector, imgsz: int) -> Any:
    """Strict tracing keeps the batch variable where a model asks for `len(tensor)`. A batch of 1 would become a constant."""
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    try:
        program = torch.export.export(detector, (_images(2, imgsz),), dynamic_shapes=shapes, strict=True)
        return torch.onnx.export(
            program, dynamo=True, input_names=["images"], output_names=["boxes", "scores"], verbose=False, external_data=False
        )
    except RuntimeError as error:  # all errors of the exporter are
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(f"the model cannot be exported: {reason}", fix="pip install --upgrade onnxscript torch") from error


def _difference(detector: Detector, path: Path, images: torch.Tensor) -> torch.Tensor:
    """The largest difference of the predictions that count: the 100 with the highest score of each image.

    Each is compared with the nearest one of the file. Queries with nearly equal scores change places, or take the last place.
    """
    runtime = required("onnxruntime", extra="export")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    with torch.no_grad():
        boxes, scores = detector(images)
    expected = torch.cat([boxes, scores], dim=-1)
    results = torch.cat([torch.from_numpy(one) for one in session.run(None, {"images": images.numpy()})], dim=-1)
    nearest = torch.cdist(expected, results, p=float("inf")).amin(-1)
    best = scores.amax(-1).topk(min(_COMPARED, nearest.shape[1])).indices
    return nearest.gather(1, best).max()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of the exporter, and without checks in `transformers` that have no counterpart in ONNX."""
    name = "TRANSFORMERS_DISABLE_TORCH_CHECK"
    before, level = os.environ.get(name), logging.root.manager.disable
    os.environ[name] = "1"
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        if before is None:
            del os.environ[name]
