"""Segmentation as a task of the loop: data, model, the two stages, loss, evaluation, and what is written at the end."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.train.detect.augment import Augmentation
from holdfast.train.devices import Place
from holdfast.train.segment.dataset import SegmentationData
from holdfast.train.segment.encoder import build
from holdfast.train.segment.evaluate import Evaluator
from holdfast.train.segment.masks import open_masks, split_up
from holdfast.train.segment.model import Segmenter, loss_of
from holdfast.train.segment.pictures import report_of
from holdfast.train.settings import SegmentSettings
from holdfast.train.task import Batch, Evaluation

MODEL = "model.pt"  # the best weights, in the run's folder


class SegmentTask:
    """Foreground from background, on images with masks."""

    metric = "iou"

    def __init__(self, settings: SegmentSettings, place: Place) -> None:
        self._settings, self._place, self._said_weights = settings, place, False
        self.lr = settings.lr0
        train, val, split_notes = split_up(open_masks(settings.data))
        if place.is_first:
            print(f"holdfast: data: {split_notes}", flush=True)
        keep = settings.cache == "ram"
        self._train = SegmentationData(
            train,
            settings.imgsz,
            augmentation=_augmentation(settings) if settings.augment else None,
            flipud=settings.flipud,
            seed=settings.seed,
            keep=keep,
        )
        self._val = SegmentationData(val, settings.imgsz, keep=keep)

    def train_data(self) -> SegmentationData:
        """The training images, augmented."""
        return self._train

    def val_data(self) -> SegmentationData:
        """The validation images, only resized."""
        return self._val

    def collate(self, samples: list[Any]) -> Batch:
        """Samples as one batch."""
        return torch.utils.data.default_collate(samples)  # type: ignore[no-any-return]

    def model(self) -> Segmenter:
        """The model; where its weights come from is printed once."""
        model, source = self.build()
        if self._place.is_first and not self._said_weights:
            self._said_weights = True
            print(f"holdfast: weights: {source}", flush=True)
        return model

    def build(self) -> tuple[Segmenter, str]:
        """The model, and where its weights come from."""
        chosen = self._settings
        return build(
            chosen.backbone,
            chosen.imgsz,
            chosen.weights,
            experts=chosen.num_experts,
            deep_supervision=chosen.deep_supervision,
        )

    def begin_epoch(self, model: nn.Module, epoch: int) -> bool:
        """Freeze the encoder in stage 1; unfreeze it in stage 2, with `progressive_unfreeze` over the first half of it."""
        assert isinstance(model, Segmenter)
        layers, chosen = len(model.encoder.layers()), self._settings
        since = epoch - chosen.frozen_epochs  # epochs of stage 2 that are done
        if since < 0:
            return model.train_only(0)
        if chosen.progressive_unfreeze:
            half = max(1, (chosen.epochs - chosen.frozen_epochs) // 2)
            layers = min(layers, -(-layers * (since + 1) // half))
        return model.train_only(layers)

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The loss per image."""
        return loss_of(model(batch["image"].float() / 255), batch["mask"])

    def loss_weight(self, batch: Batch) -> float:
        """The number of images: the loss is their mean."""
        return float(len(batch["index"]))

    def evaluate(self, model: nn.Module, batches: Iterable[Batch], place: Place) -> Evaluation:
        """The mean of every metric over the images of all ranks."""
        evaluator = Evaluator()
        for batch in batches:
            evaluator.add(batch["index"], model(batch["image"].float() / 255)[0].float().sigmoid()[:, 0], batch["mask"])
        result = Evaluator.merged(place.gather(evaluator))
        return Evaluation(metrics=result.metrics(), details=result)

    def finish(self, model: nn.Module, evaluation: Evaluation, folder: Path) -> dict[str, Any]:
        """Write the model and the pictures."""
        chosen = self._settings
        built = {"backbone": chosen.backbone, "num_experts": chosen.num_experts, "imgsz": chosen.imgsz}
        torch.save({**built, "state_dict": {name: value.cpu() for name, value in model.state_dict().items()}}, folder / MODEL)
        return report_of(evaluation.details, self._val, folder)


def _augmentation(settings: SegmentSettings) -> Augmentation:
    names = ("hsv_h", "hsv_s", "hsv_v", "degrees", "translate", "scale", "fliplr")
    return Augmentation(mosaic=0.0, **{name: getattr(settings, name) for name in names})


TASK = SegmentTask
