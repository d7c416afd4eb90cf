"""Detection metrics: mAP as COCO defines it, precision and recall, the confusion matrix, and the errors of each image.

Boxes are left, top, right, bottom in pixels of the original image. mAP comes from faster-coco-eval, whose numbers are those of
pycocotools. What mAP leaves out (precision and recall at a threshold, which class is taken for which) is counted here at IoU 0.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.train.extras import required

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.float32]
Counts = npt.NDArray[np.int64]

_MOST_PREDICTIONS = 100  # per image: what COCO counts
_MOST_CLASSES_NAMED = 20  # above, the metrics name no single class
_MOST_THRESHOLDS = 1000
_IOU = 0.5  # at which a prediction has found an object
_AREA = [[0, 1e10]]  # objects of every size


@dataclass(frozen=True, slots=True)
class Predictions:
    """What the model found in one image: tensors, arrays or lists of N × 4, N and N values."""

    boxes: Any
    scores: Any
    classes: Any


@dataclass(frozen=True, slots=True)
class Targets:
    """The objects of one image: M × 4 and M values; `index` is the image's place in the validation set."""

    boxes: Any
    classes: Any
    index: int


class _Image(NamedTuple):
    """One image: predictions with the highest score first (box, score, class), and objects (box, class)."""

    predictions: Rows
    targets: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageResult:
    """One image at the threshold. `hits` says which predictions are right, `found` which objects have one."""

    index: int
    boxes: Rows
    scores: Rows
    classes: Counts
    hits: npt.NDArray[np.bool_]
    target_boxes: Rows
    target_classes: Counts
    found: npt.NDArray[np.bool_]

    @property
    def mistakes(self) -> int:
        """Wrong predictions and missed objects."""
        return int((~self.hits).sum() + (~self.found).sum())

    @property
    def error(self) -> float:
        """Mistakes as a fraction of mistakes and hits; 0 for an empty image that stayed empty."""
        return self.mistakes / max(1, self.mistakes + int(self.hits.sum()))


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionResult:
    """One evaluation. Everything but mAP and the curves is counted at `threshold`, where F1 is highest, and IoU 0.5."""

    classes: list[str]
    metrics: dict[str, float]
    threshold: float
    confusion: Counts  # rows: the object's class; columns: the predicted class; the last of each is background
    curves: dict[str, Floats] = field(repr=False)  # precision at recall 0, 0.01, … 1 of each class that has objects
    images: list[ImageResult] = field(repr=False)

    def worst(self, count: int) -> list[ImageResult]:
        """The images with the largest error; of equal ones those with more mistakes. Images without a mistake are skipped."""
        wrong = [image for image in self.images if image.mistakes]
        return sorted(wrong, key=lambda image: (-image.error, -image.mistakes, image.index))[:count]


class DetectionEvaluator:
    """Takes one image after the other, on any rank; holds at most 100 predictions of each."""

    def __init__(self, classes: Sequence[str]) -> None:
        required("faster_coco_eval", extra="detect")
        self.classes = list(classes)
        self._images: dict[int, _Image] = {}

    def add(self, predictions: Predictions, targets: Targets) -> None:
        """Add an image; one that comes twice, as samplers for several ranks give it, counts once."""
        rows = np.concatenate([_rows(predictions.boxes, 4), _rows(predictions.scores, 1), _rows(predictions.classes, 1)], axis=1)
        rows = rows[np.isfinite(rows).all(axis=1)]  # a model that diverged finds nothing
        best = np.argsort(-rows[:, 4], kind="stable")[:_MOST_PREDICTIONS]
        objects = np.concatenate([_rows(targets.boxes, 4), _rows(targets.classes, 1)], axis=1)
        self._images[int(targets.index)] = _Image(rows[best], objects)

    def merge(self, other: DetectionEvaluator) -> None:
        """Take over the images of another rank's evaluator; evaluators can be pickled."""
        self._images |= other._images

    def result(self) -> DetectionResult:
        """All metrics of the images so far. Without a single object they are NaN."""
        images = dict(sorted(self._images.items()))
        precision = _coco_precision(list(images.values()), len(self.classes))
        matches = [_match(image) for image in images.values()]
        scores, threshold = _at_best_f1(list(images.values()), matches, len(self.classes))
        results = [
            _image_result(index, images[index], matched, threshold) for index, matched in zip(images, matches, strict=True)
        ]
        curves = {name: precision[:, :, place] for place, name in enumerate(self.classes) if precision[0, 0, place] >= 0}
        named = curves if 1 < len(self.classes) <= _MOST_CLASSES_NAMED else {}
        by_class = {f"map/{name}": float(curve.mean()) for name, curve in named.items()}
        return DetectionResult(
            classes=self.classes,
            metrics={**_mean_precisions(precision), **scores, **by_class},
            threshold=threshold,
            confusion=_confusion(results, len(self.classes)),
            curves={name: curve[0] for name, curve in curves.items()},
            images=results,
        )


def _rows(values: Any, columns: int) -> Rows:
    """Values of a tensor, an array or a list as rows of single precision on the host."""
    values = values.detach().float().cpu().numpy() if hasattr(values, "detach") else values
    return np.asarray(values, np.float32).reshape(-1, columns)


# mAP


def _coco_precision(images: Sequence[_Image], classes: int) -> Floats:
    """Precision by IoU threshold (0.50 to 0.95), recall (101 places) and class; -1 for a class without objects."""
    rows = [_coco_predictions(number, image.predictions) for number, image in enumerate(images, 1) if len(image.predictions)]
    kinds = {int(kind) for image in images for kind in image.targets[:, 4]}
    if not rows or not kinds:
        return np.tile([0.0 if kind in kinds else -1.0 for kind in range(classes)], (10, 101, 1))
    coco = required("faster_coco_eval", extra="detect")
    truth = coco.COCO(_coco_truth(images, classes))
    predictions = truth.loadRes(np.concatenate(rows))
    evaluation = coco.COCOeval_faster(truth, predictions, "bbox")
    evaluation.params.areaRng, evaluation.params.areaRngLbl = _AREA, ["all"]
    evaluation.params.maxDets = [_MOST_PREDICTIONS]
    evaluation.evaluate()
    evaluation.accumulate()
    precision: Floats = np.asarray(evaluation.eval["precision"], np.float64)[:, :, :, 0, 0]
    return precision


def _coco_truth(images: Sequence[_Image], classes: int) -> dict[str, Any]:
    """The objects as a COCO file holds them; numbers start at 1, since COCO takes 0 for no object."""
    objects: list[dict[str, Any]] = []
    for number, image in enumerate(images, 1):
        for left, top, right, bottom, kind in image.targets.tolist():
            box = [left, top, right - left, bottom - top]
            annotation = {"image_id": number, "category_id": int(kind) + 1, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
            objects.append({"id": len(objects) + 1, **annotation})
    return {
        "info": {},
        "images": [{"id": number} for number in range(1, len(images) + 1)],
        "categories": [{"id": number, "name": str(number)} for number in range(1, classes + 1)],
        "annotations": objects,
    }


def _coco_predictions(number: int, rows: Rows) -> Floats:
    """Rows of image, left, top, width, height, score, class."""
    wide = rows.astype(np.float64)
    sizes = np.maximum(wide[:, 2:4] - wide[:, :2], 0)
    return np.column_stack([np.full(len(wide), number), wide[:, :2], sizes, wide[:, 4], wide[:, 5] + 1])


def _mean_precisions(precision: Floats) -> dict[str, float]:
    measured = precision[:, :, precision[0, 0] >= 0]
    if not measured.size:
        return dict.fromkeys(("map", "map50", "map75"), float("nan"))
    return {"map": float(measured.mean()), "map50": float(measured[0].mean()), "map75": float(measured[5].mean())}


# What is found at a threshold


def _match(image: _Image) -> Counts:
    """For each prediction the object of its own class that it found, or -1.

    The highest score chooses first, so what is matched above a threshold does not depend on what is below.
    """
    same = image.predictions[:, 5:6] == image.targets[None, :, 4]
    return _assigned(np.where(same, _iou(image.predictions[:, :4], image.targets[:, :4]), 0.0))


def _assigned(overlap: Floats) -> Counts:
    """Each row in turn takes the free column with the highest IoU."""
    taken = np.full(len(overlap), -1, np.int64)
    for row in np.flatnonzero((overlap >= _IOU).any(axis=1)):
        best = int(np.argmax(overlap[row]))
        if overlap[row, best] >= _IOU:
            taken[row] = best
            overlap[:, best] = 0.0
    return taken


def _iou(boxes: Rows, others: Rows) -> Floats:
    ours, theirs = boxes.astype(np.float64)[:, None], others.astype(np.float64)[None]
    shared = np.clip(np.minimum(ours[..., 2:], theirs[..., 2:]) - np.maximum(ours[..., :2], theirs[..., :2]), 0, None).prod(-1)
    union = _area(ours) + _area(theirs) - shared
    ratio: Floats = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return ratio


def _area(boxes: Floats) -> Floats:
    area: Floats = np.clip(boxes[..., 2:] - boxes[..., :2], 0, None).prod(-1)
    return area


def _at_best_f1(images: Sequence[_Image], matches: Sequence[Counts], classes: int) -> tuple[dict[str, float], float]:
    """Precision, recall and F1, each the mean over the classes with objects, at the threshold where that F1 is highest."""
    rows = np.concatenate([np.zeros((0, 6), np.float32), *(image.predictions for image in images)])
    right = np.concatenate([np.zeros(0, np.int64), *matches]) >= 0
    kinds = np.concatenate([np.zeros(0, np.float32), *(image.targets[:, 4] for image in images)]).astype(np.int64)
    objects = np.bincount(kinds, minlength=classes)
    if not objects.any():
        return dict.fromkeys(("precision", "recall", "f1"), float("nan")), 0.0
    thresholds = _thresholds(rows[:, 4])
    curves = [
        _precision_recall(rows[rows[:, 5] == kind, 4], right[rows[:, 5] == kind], int(objects[kind]), thresholds)
        for kind in np.flatnonzero(objects)
    ]
    precision, recall = np.array(curves).transpose(1, 0, 2)
    f1 = np.divide(2 * precision * recall, precision + recall, out=np.zeros_like(recall), where=precision + recall > 0)
    best = int(np.argmax(f1.mean(axis=0)))
    means = {name: float(some[:, best].mean()) for name, some in (("precision", precision), ("recall", recall), ("f1", f1))}
    return means, float(thresholds[best])


def _thresholds(scores: Rows) -> Rows:
    """All scores that occur, highest first; of very many a thousand. Without any: one threshold that nothing reaches."""
    thresholds: Rows = np.unique(scores)[::-1]
    if not len(thresholds):
        return np.ones(1, np.float32)
    some: Rows = thresholds[np.unique(np.linspace(0, len(thresholds) - 1, _MOST_THRESHOLDS).astype(int))]
    return some


def _precision_recall(scores: Rows, right: npt.NDArray[np.bool_], objects: int, thresholds: Rows) -> tuple[Floats, Floats]:
    """Of one class, at each threshold. No prediction: precision 0."""
    order = np.argsort(-scores, kind="stable")
    above = np.searchsorted(-scores[order], -thresholds, side="right")
    hits = np.concatenate([[0], np.cumsum(right[order])])[above]
    return hits / np.maximum(above, 1), hits / objects


def _image_result(index: int, image: _Image, matched: Counts, threshold: float) -> ImageResult:
    kept = image.predictions[:, 4] >= threshold
    rows, matched = image.predictions[kept], matched[kept]
    found = np.zeros(len(image.targets), bool)
    found[matched[matched >= 0]] = True
    return ImageResult(
        index=index,
        boxes=rows[:, :4],
        scores=rows[:, 4],
        classes=rows[:, 5].astype(np.int64),
        hits=matched >= 0,
        target_boxes=image.targets[:, :4],
        target_classes=image.targets[:, 4].astype(np.int64),
        found=found,
    )


def _confusion(images: Sequence[ImageResult], classes: int) -> Counts:
    """Counts of object class by predicted class. The hits come first: the diagonal is what recall counts."""
    table = np.zeros((classes + 1, classes + 1), np.int64)
    for image in images:
        predicted, actual = image.classes[~image.hits], image.target_classes[~image.found]
        taken_for = _assigned(_iou(image.boxes[~image.hits], image.target_boxes[~image.found]))
        missed = np.setdiff1d(np.arange(len(actual)), taken_for)
        np.add.at(table, (image.classes[image.hits], image.classes[image.hits]), 1)
        np.add.at(table, (np.append(actual, classes)[taken_for], predicted), 1)  # place -1 is the background
        table[:classes, classes] += np.bincount(actual[missed], minlength=classes)
    return table
