"""`too-good`: what was held out is known as well as what was memorised."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from holdfast.detectors.curves.curve_finding import curve_finding
from holdfast.detectors.curves.shape import Shape
from holdfast.detectors.finding import Finding
from holdfast.signals.curves import Curves


def too_good(curves: Curves, *, at_least: int = 8, gone: float = 0.01, above: float = 1.0) -> Iterator[Finding]:
    """The training loss is all but gone (under `gone` of its beginning), and the validation loss is no higher.

    Something memorised is always known a little better than something new, unless it is the same. Info: an easy
    task, or dropout and augmentation in training, can look like it.
    """
    train, val = curves.train_loss, curves.val_loss
    if train is None or val is None or len(learned := Shape(train)) < at_least or len(held := Shape(val)) < at_least:
        return
    if learned.start <= 0 or not 0 <= learned.end < gone * learned.start:
        return
    ratios = [
        value / max(float(np.mean(between)), 1e-12)
        for value, start, end in zip(held.values[1:], held.curve.steps, held.curve.steps[1:], strict=False)
        if len(between := learned.values[(learned.curve.steps > start) & (learned.curve.steps <= end)])
    ]
    if not ratios or float(np.median(ratios[len(ratios) // 2 :])) > above:
        return
    yield curve_finding(
        "too-good", held.curve, len(held) - 1, severity="info", train=learned.end, held_out=held.end, start=learned.start
    )
