"""How well a map of foreground probabilities fits a mask: IoU, Dice, MAE, S-measure, E-measure, weighted F-measure.

Each is a function of one prediction (H×W, 0 to 1) and one mask (H×W, bool), as their papers define them, with the values that
the usual evaluation code gives for masks that are empty or full. IoU and Dice are taken at 0.5; the E-measure is the mean over
256 thresholds. Where mask and prediction are both empty, IoU, Dice and weighted F are 1: nothing was to be found.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.train.extras import required

Map = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_EPS = float(np.spacing(1))
_THRESHOLD = 0.5
_LEVELS = 256
_BLUR, _SIGMA = 7, 5.0  # of the errors of neighbours in the weighted F-measure
_HALF = 5.0  # pixels from the object at which an error counts half of what it counts more far away


class Scores(NamedTuple):
    """All of them for one image."""

    iou: float
    dice: float
    mae: float
    s_measure: float
    e_measure: float
    weighted_f: float


def scores(prediction: npt.ArrayLike, mask: npt.ArrayLike) -> Scores:
    """Every metric of a prediction."""
    values, truth = np.asarray(prediction, np.float64), np.asarray(mask, np.bool_)
    iou, dice = overlap(values, truth)
    return Scores(
        iou,
        dice,
        float(np.abs(values - truth).mean()),
        s_measure(values, truth),
        e_measure(values, truth),
        weighted_f(values, truth),
    )


def overlap(prediction: Map, mask: Mask) -> tuple[float, float]:
    """IoU and Dice of what is predicted as foreground."""
    predicted = prediction > _THRESHOLD
    both, areas = int((predicted & mask).sum()), int(predicted.sum()) + int(mask.sum())
    return (both / (areas - both), 2 * both / areas) if areas else (1.0, 1.0)


def s_measure(prediction: Map, mask: Mask) -> float:
    """Structure: how alike objects and background are, and how alike four regions around the object's middle, half each."""
    covered = float(mask.mean())
    if covered in (0.0, 1.0):
        return float(prediction.mean()) if covered else 1.0 - float(prediction.mean())
    objects = covered * _evenness(prediction[mask]) + (1 - covered) * _evenness(1 - prediction[~mask])
    return max(0.0, 0.5 * objects + 0.5 * _regions(prediction, mask))


def _evenness(values: Map) -> float:
    """1 where all values are 1."""
    mean, deviation = float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else 0.0
    return 2 * mean / (mean**2 + 1 + deviation + _EPS)


def _regions(prediction: Map, mask: Mask) -> float:
    """The similarity of the four parts that meet in the middle of the object, weighted by their areas."""
    row, column = (int(place) + 1 for place in np.argwhere(mask).mean(axis=0).round())
    total = 0.0
    for rows in (slice(None, row), slice(row, None)):
        for columns in (slice(None, column), slice(column, None)):
            part = prediction[rows, columns]
            total += part.size * _similarity(part, mask[rows, columns]) if part.size else 0.0
    return total / mask.size


def _similarity(prediction: Map, mask: Mask) -> float:
    """Means, contrast and structure of two parts compared (SSIM without its constants)."""
    ours, theirs = float(prediction.mean()), float(mask.mean())
    above, beside, rest = prediction - ours, mask - theirs, prediction.size - 1 + _EPS
    shared = 4 * ours * theirs * float((above * beside).sum()) / rest
    apart = (ours**2 + theirs**2) * float((above**2).sum() + (beside**2).sum()) / rest
    if shared:
        return shared / (apart + _EPS)
    return 1.0 if apart == 0 else 0.0


def e_measure(prediction: Map, mask: Mask) -> float:
    """Enhanced alignment: pixels and means compared together, as the mean over all thresholds."""
    levels = (prediction * (_LEVELS - 1)).astype(np.uint8)
    hits, alarms = (np.bincount(levels[part], minlength=_LEVELS)[::-1].cumsum() for part in (mask, ~mask))
    objects, pixels = int(mask.sum()), mask.size
    predicted_pixels = hits + alarms  # pixels at or above each threshold
    if objects in (0, pixels):
        aligned = predicted_pixels if objects else pixels - predicted_pixels
    else:
        predicted, true = predicted_pixels / pixels, objects / pixels
        parts = (
            (hits, 1 - predicted, 1 - true),
            (alarms, 1 - predicted, -true),
            (objects - hits, -predicted, 1 - true),
            (pixels - objects - alarms, -predicted, -true),
        )
        aligned = sum(count * (2 * ours * theirs / (ours**2 + theirs**2 + _EPS) + 1) ** 2 / 4 for count, ours, theirs in parts)
    return float(np.mean(aligned / (pixels - 1 + _EPS)))


def weighted_f(prediction: Map, mask: Mask) -> float:
    """F1 in which an error counts less beside errors of an object's own pixels, and more far away from every object."""
    if not mask.any():
        return 0.0 if (prediction > _THRESHOLD).any() else 1.0
    images = required("scipy.ndimage", extra="segment")
    distance, nearest = images.distance_transform_edt(~mask, return_indices=True)
    errors = np.abs(prediction - mask)
    around = errors[tuple(nearest)]
    for axis in (0, 1):
        around = images.convolve1d(around, _gaussian(), axis, mode="constant")
    weighted = np.where(mask, np.minimum(around, errors), errors * (2 - 0.5 ** (distance / _HALF)))
    missed, alarms, objects = float(weighted[mask].sum()), float(weighted[~mask].sum()), int(mask.sum())
    recall, precision = 1 - missed / objects, (objects - missed) / (objects - missed + alarms + _EPS)
    return 2 * recall * precision / (recall + precision + _EPS)


@cache
def _gaussian() -> Map:
    places = np.arange(_BLUR) - _BLUR // 2
    line = np.exp(-(places**2) / (2 * _SIGMA**2))
    kernel: Map = line / line.sum()
    return kernel
