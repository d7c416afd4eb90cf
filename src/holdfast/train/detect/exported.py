"""A trained detector for `holdfast export`: a function of images that gives boxes and scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.errors import HoldfastError, UsageError
from holdfast.train.detect.architectures import build
from holdfast.train.detect.boxes import open_boxes
from holdfast.train.detect.dataset import DetectionData
from holdfast.train.export import Exportable, Outputs

_IMAGES = 3  # with which the file is checked
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


def exportable(run: Path, settings: Any) -> Exportable:
    """The best model of a run."""
    config = run / "model" / "config.json"
    if not config.exists():
        raise UsageError(f"{run} has no finished model yet.", fix=f"holdfast resume {run}, then export it")
    labels = json.loads(config.read_text(encoding="utf-8"))["id2label"]
    classes = [labels[number] for number in sorted(labels, key=int)]
    built = build(settings.architecture, classes=classes, imgsz=settings.imgsz, weights=str(run / "model"), dropout=0.0)
    return detector(built.model, imgsz=settings.imgsz, classes=classes, images=_validation_images(settings))


def detector(model: nn.Module, *, imgsz: int, classes: Sequence[str], images: torch.Tensor | None = None) -> Exportable:
    """A detection model as it is exported; class names are in the file's metadata."""
    return Exportable(
        model=Detector(model),
        imgsz=imgsz,
        outputs=("boxes", "scores"),
        described=f"boxes, scores of {len(classes)} classes",
        metadata={"classes": json.dumps(list(classes))},
        images=images,
        difference=_difference,
    )


def _difference(outputs: Outputs, results: Outputs) -> torch.Tensor:
    """The largest difference of the predictions that count: the 100 with the highest score of each image.

    Each is compared with the nearest one of the file. Queries with nearly equal scores change places, or take the last place.
    """
    nearest = torch.cdist(torch.cat([*outputs], dim=-1), torch.cat([*results], dim=-1), p=float("inf")).amin(-1)
    best = outputs[1].amax(-1).topk(min(_COMPARED, nearest.shape[1])).indices
    return nearest.gather(1, best).max()


def _validation_images(settings: Any) -> torch.Tensor | None:
    """Images that the model was made for; None where the data is not there any more."""
    try:
        data = DetectionData(open_boxes(settings.data), "val", imgsz=settings.imgsz)
        return torch.stack([data[place % len(data)]["image"] for place in range(_IMAGES)]).float() / 255
    except HoldfastError:
        return None
