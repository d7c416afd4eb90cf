"""A trained segmentation model for `holdfast export`: a function of images that gives a map of foreground probabilities."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from holdfast.errors import HoldfastError, UsageError
from holdfast.train.export import Exportable, Outputs
from holdfast.train.segment.dataset import SegmentationData
from holdfast.train.segment.encoder import TimmEncoder, fill
from holdfast.train.segment.masks import open_masks, split_up
from holdfast.train.segment.model import Segmenter
from holdfast.train.segment.task import MODEL
from holdfast.train.settings import SegmentSettings

_IMAGES = 3  # with which the file is checked


class Foreground(nn.Module):
    """A segmentation model as a function of images: B×3×S×S with values from 0 to 1."""

    def __init__(self, model: Segmenter) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor]:
        """The probability of foreground, B×S×S."""
        return (self.model(images)[0].sigmoid()[:, 0],)


def load_model(path: Path) -> Segmenter:
    """The model in a `model.pt` of a run, on the CPU, ready to predict."""
    kept = torch.load(path, map_location="cpu", weights_only=True)
    model = Segmenter(TimmEncoder(kept["backbone"], kept["imgsz"]), experts=kept["num_experts"], deep_supervision=False)
    fill(model, kept["state_dict"], str(path))
    return model.eval()


def exportable(run: Path, settings: SegmentSettings) -> Exportable:
    """The best model of a run."""
    if not (run / MODEL).exists():
        raise UsageError(f"{run} has no finished model yet.", fix=f"holdfast resume {run}, then export it")
    return foreground(load_model(run / MODEL), settings.imgsz, _validation_images(settings))


def foreground(model: Segmenter, imgsz: int, images: torch.Tensor | None = None) -> Exportable:
    """A segmentation model as it is exported."""
    return Exportable(
        model=Foreground(model),
        imgsz=imgsz,
        outputs=("foreground",),
        described="foreground, a probability for every pixel",
        metadata={"classes": '["foreground"]'},
        images=images,
        difference=_difference,
    )


def _difference(outputs: Outputs, results: Outputs) -> torch.Tensor:
    return (outputs[0] - results[0]).abs().max()


def _validation_images(settings: SegmentSettings) -> torch.Tensor | None:
    """Images that the model was made for; None where the data is not there any more."""
    try:
        data = SegmentationData(split_up(open_masks(settings.data))[1], settings.imgsz)
        return torch.stack([data[place % len(data)]["image"] for place in range(_IMAGES)]).float() / 255
    except HoldfastError:
        return None
