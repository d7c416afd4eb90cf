"""`loss-divergence`: the training loss ended far above where it began or had been, and stayed there."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from holdfast.detectors.curves.curve_finding import curve_finding
from holdfast.detectors.curves.flat import is_adversarial
from holdfast.detectors.curves.shape import Shape
from holdfast.detectors.finding import Finding
from holdfast.signals.curves import Curves

_REWARD = re.compile(r"rew(ard)?s?(?![a-z])|returns?(?![a-z])")


def divergence(
    curves: Curves, *, lost: float = 0.8, above: float = 0.5, untaught: float = 1.0, sigmas: float = 3.0, at_least: int = 5
) -> Iterator[Finding]:
    """What was learned is lost (`lost` of it), and the level at the end is `above` of its size over the best.

    Where nothing had been learned it must be `untaught` of its size: losses of networks that play against each other rise by half
    in good health, and so does that of a policy whose reward rises.
    Only the training loss speaks: a validation loss that rises while the training loss falls is `overfitting`.
    """
    curve = curves.train_loss
    if curve is None or len(shape := Shape(curve)) < at_least or is_adversarial(curve) or _reward_rose(curves):
        return
    best = min(shape.best, shape.start)
    rise = shape.end - best
    both = 0.5 if _held_out_rose_too(curves) else 1.0
    share = above if shape.start - best > 0.1 * abs(shape.start) else untaught
    clear = sigmas * shape.noise / np.sqrt(3)  # each level is that of three points or more
    if rise < both * max(share * abs(best), clear, lost * (shape.start - best)):
        return
    high = shape.smoothed > best + 0.5 * rise
    onset = len(high) - int(np.argmin(high[::-1])) if not high.all() else 0
    if len(high) - onset < max(3, len(high) // 20):  # too short to say that it stays
        return
    yield curve_finding(
        "loss-divergence",
        shape.curve,
        len(shape) - 1,
        severity="critical",
        onset=int(shape.curve.steps[min(onset, len(high) - 1)]),
        start=shape.start,
        best=best,
        end=shape.end,
    )


def _reward_rose(curves: Curves) -> bool:
    """Reinforcement learning: its losses follow a target that moves."""
    rewards = (Shape(curve) for curve in curves.curves if _REWARD.search(curve.name.lower()))
    return any(len(shape) >= 5 and shape.shown(shape.end) > shape.shown(shape.start) for shape in rewards)


def _held_out_rose_too(curves: Curves) -> bool:
    """Whether the validation loss ended clearly above its beginning: then the training loss need not say it as loudly."""
    shape = Shape(curves.val_loss) if curves.val_loss is not None else None
    return shape is not None and len(shape) >= 4 and shape.end > shape.start + 0.25 * abs(shape.start)
