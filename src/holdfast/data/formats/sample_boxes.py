"""Boxes of detection samples, as torchvision has them: (image, {"boxes": left, top, right, bottom, "labels": …})."""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.data.checks.boxes import box_faults
from holdfast.data.columns import Array
from holdfast.data.problem import Fault
from holdfast.data.samples import ClassKey, Entry, Label, Thing

_LONGEST_NAME = 40
_NOT_READ = (TypeError, ValueError, RuntimeError, OverflowError)


class OddTarget(ValueError):
    """Boxes that are not understood; its words say why."""


class BoxJudge:
    """Judges the boxes of one sample after the other. Those that are not understood are left out, and told by a note."""

    def __init__(self, split: str) -> None:
        self._split = split
        self._odd = 0
        self._first = ""

    def faults(self, place: int, sample: Any) -> list[Fault]:
        """What is wrong with the boxes of a sample, if it has any."""
        target = sample[1] if isinstance(sample, (tuple, list)) and len(sample) == 2 else None
        if not isinstance(target, dict) or "boxes" not in target:
            return []
        shape: tuple[int, ...] = tuple(getattr(sample[0], "shape", ()))
        if len(shape) != 3:
            return []
        name = f"{self._split}[{place}]"
        height, width = (shape[1], shape[2]) if shape[0] <= 16 else (shape[0], shape[1])
        try:
            label = Label(things_of(target))
        except OddTarget as error:
            self._odd += 1
            self._first = self._first or f"{name}: {error}"
            return []
        return list(box_faults(Entry(self._split, name), label, (int(width), int(height)), None))

    def notes(self) -> list[str]:
        """How many samples have boxes that were not judged, and why the first of them were not."""
        samples = "1 sample" if self._odd == 1 else f"{self._odd:,} samples"
        return [f"the boxes of {samples} were not judged; first {self._first}"] if self._odd else []


def things_of(target: dict[str, Any]) -> list[Thing]:
    """The boxes of a target with their labels. Where there are no labels, all are of class 0."""
    boxes = _four_each(_numbers(target["boxes"]))
    labels = target.get("labels")
    try:
        kinds = [0] * len(boxes) if labels is None else _array(labels).ravel().tolist()
    except _NOT_READ:
        raise OddTarget("its labels are not one for each box") from None
    if len(kinds) != len(boxes):
        raise OddTarget(f"it has {_many(len(kinds), 'label', 'labels')} for {_many(len(boxes), 'box', 'boxes')}")
    pairs = zip(kinds, boxes.tolist(), strict=True)
    return [Thing(_class(kind), (left, top, right, bottom)) for kind, (left, top, right, bottom) in pairs]


def _array(value: Any) -> Array:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _numbers(value: Any) -> Array:
    try:
        if value is not None:  # which would become NaN
            return _array(value).astype(np.float64)
    except _NOT_READ:
        pass
    raise OddTarget("its boxes cannot be read as numbers")


def _four_each(boxes: Array) -> Array:
    if not boxes.size or boxes.shape == (4,):
        return boxes.reshape(-1, 4)
    if boxes.ndim == 2 and boxes.shape[1] == 4:
        return boxes
    if boxes.ndim == 2:
        raise OddTarget(f"its boxes have {_many(boxes.shape[1], 'number', 'numbers')} each, not four")
    raise OddTarget(f"its boxes have the shape {boxes.shape}, not (boxes, 4)")


def _class(kind: Any) -> ClassKey:
    """A whole number as a number, anything else (words, NaN) by its name."""
    if isinstance(kind, (int, float)) and kind == kind and abs(kind) != float("inf"):
        return int(kind)
    return str(kind)[:_LONGEST_NAME]


def _many(count: int, one: str, more: str) -> str:
    return f"{count:,} {one if count == 1 else more}"
