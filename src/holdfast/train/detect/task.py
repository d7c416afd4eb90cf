"""Object detection as a task of the loop: data, model, loss, evaluation, and what is written at the end."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.train.detect.architectures import build, forward_loss, predict, transformers
from holdfast.train.detect.augment import Augmentation
from holdfast.train.detect.boxes import open_boxes
from holdfast.train.detect.dataset import DetectionData, collate, fill_caches
from holdfast.train.detect.evaluate import DetectionEvaluator, Predictions, Targets
from holdfast.train.detect.pictures import report_of
from holdfast.train.detect.sizes import find
from holdfast.train.devices import Place
from holdfast.train.progress import counting
from holdfast.train.settings import DetectSettings
from holdfast.train.task import Batch, Evaluation


class DetectTask:
    """RT-DETRv2 or D-FINE on a YOLO, COCO or VOC data set."""

    metric = "map"

    def __init__(self, settings: DetectSettings, place: Place) -> None:
        self._settings, self._place, self._said_weights = settings, place, False
        self.lr = find(settings.architecture).lr
        images = open_boxes(settings.data)
        mosaic_epochs = max(0, settings.epochs - settings.close_mosaic)
        augmentation = _augmentation(settings) if settings.augment else None
        self._train = DetectionData(
            images,
            "train",
            imgsz=settings.imgsz,
            augmentation=augmentation,
            mosaic_epochs=mosaic_epochs,
            seed=settings.seed,
        )
        self._val = DetectionData(images, "val", imgsz=settings.imgsz)
        if settings.cache in ("ram", "disk"):
            count = len(self._train) + len(self._val)
            with counting(f"caching {count:,} images ({settings.cache})", shown=place.is_first) as progress:
                fill_caches([self._train, self._val], settings.cache, progress)  # type: ignore[arg-type]

    def train_data(self) -> DetectionData:
        """The training images, augmented."""
        return self._train

    def val_data(self) -> DetectionData:
        """The validation images, only resized."""
        return self._val

    def collate(self, samples: list[Any]) -> Batch:
        """Samples as one batch."""
        return collate(samples)

    def model(self) -> nn.Module:
        """The detector; where its weights come from is printed once."""
        settings = self._settings
        model, source = build(
            settings.architecture,
            classes=self._train.classes,
            imgsz=settings.imgsz,
            weights=settings.weights,
            dropout=settings.dropout,
        )
        if self._place.is_first and not self._said_weights:
            self._said_weights = True
            print(f"holdfast: weights: {source}", flush=True)
        return model

    def begin_epoch(self, model: nn.Module, epoch: int) -> bool:  # noqa: ARG002
        """Every epoch trains all of the model."""
        return False

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The loss per box."""
        return forward_loss(model, batch["images"], batch["boxes"], batch["classes"])

    def loss_weight(self, batch: Batch) -> float:
        """The number of boxes: the loss is their mean."""
        return float(max(1, sum(len(boxes) for boxes in batch["boxes"])))

    def evaluate(self, model: nn.Module, batches: Iterable[Batch], place: Place) -> Evaluation:
        """mAP and its relatives on the images of all ranks."""
        evaluator = DetectionEvaluator(self._train.classes)
        for batch in batches:
            predictions = predict(model, batch["images"], batch["size"])
            for predicted, boxes, classes, size, index in zip(
                predictions, batch["boxes"], batch["classes"], batch["size"].tolist(), batch["index"].tolist(), strict=True
            ):
                evaluator.add(Predictions(*predicted), Targets(_in_pixels(boxes, size), classes, index))
        for other in place.gather(evaluator):
            evaluator.merge(other)
        result = evaluator.result()
        return Evaluation(metrics=result.metrics, details=result)

    def finish(self, model: nn.Module, evaluation: Evaluation, folder: Path) -> dict[str, Any]:
        """Write the model in the format of `transformers`, and the pictures."""
        transformers().utils.logging.disable_progress_bar()
        model.save_pretrained(folder / "model")  # type: ignore[operator]
        return report_of(evaluation.details, self._val.original, folder)


def _in_pixels(boxes: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Corners in pixels of the original, from centre, width and height as fractions."""
    middle, extent = boxes.float().cpu().chunk(2, dim=-1)
    height, width = size
    return torch.cat([middle - extent / 2, middle + extent / 2], dim=-1) * torch.tensor([width, height, width, height])


def _augmentation(settings: DetectSettings) -> Augmentation:
    names = ("hsv_h", "hsv_s", "hsv_v", "degrees", "translate", "scale", "fliplr", "mosaic")
    return Augmentation(**{name: getattr(settings, name) for name in names})


TASK = DetectTask
