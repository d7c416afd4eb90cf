"""`not-learning`: the loss ends where it began, or the metric never leaves the bottom."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np

from holdfast.detectors.curves.curve_finding import curve_finding
from holdfast.detectors.curves.shape import Shape
from holdfast.detectors.finding import Finding
from holdfast.signals.curves import HELD_OUT, Curve, Curves

_MOST_CLASSES = 20  # from there on the loss of some number of classes is near every loss
_STEPS = 4  # times as many points where each is a single step
_CHANCE = 2.0  # deviations that the mean of the last third lies below that of the first, beyond chance
_LITTLE = 1e-3  # of its level: less than this is nothing learned, however sure the fall is
_SEEN = 0.03  # of its level: a loss so noisy that such a fall would not be seen says nothing
_NONE_BY_CHANCE = re.compile(r"(?<![a-z])(map|bleu|r2|mcc|kappa)(?![a-z])")  # metrics that are 0 for a model that knows nothing
_ADVERSARIAL = re.compile(r"(?<![a-z])(d|g|disc|discriminator|gen|generator|critic|adv|adversarial)(?![a-z])")


def flat(curves: Curves, *, at_least: int = 8, moved: float = 0.02, above: float = 0.25, lost: float = 0.5) -> Iterator[Finding]:
    """The training loss has not fallen by `moved` of where it began, nor risen by `above`: that is `loss-divergence`.

    So is one that had fallen by `lost` for a while. Losses of networks that play against each other stand still when all is well.
    Single steps count from where the learning rate is half of its highest: before that, a warm-up teaches next to nothing.
    """
    curve = curves.train_loss or curves.val_loss
    if (
        curve is None
        or is_adversarial(curve)
        or len(shape := Shape(curve)) < at_least
        or (_of_single_steps(curve) and _since_warm_up(curve, curves) < at_least * _STEPS)
    ):
        return
    fallen = shape.start - shape.end
    if (
        shape.learned > lost * abs(shape.start)
        or (_may_fall(shape) if _of_single_steps(curve) else fallen > moved * abs(shape.start))
        or fallen < -above * abs(shape.start)
        or _got_better_meanwhile(curves)
        or _is_good_already(curves)
    ):
        return
    yield curve_finding(
        "not-learning",
        shape.curve,
        len(shape) - 1,
        onset=int(shape.curve.steps[0]),
        start=shape.start,
        end=shape.end,
        classes=classes_of_chance(shape.start),
    )


def never_off_the_ground(
    curves: Curves, *, at_least: int = 20, ground: float = 0.01, underfit: float = 0.05, long: int = 40, updates: int = 128
) -> Iterator[Finding]:
    """A metric that can be 1 stays under `ground` for the whole run, and the validation loss has not fallen.

    Where the loss did fall, but after `long` evaluations the metric is still under `underfit`: `underfitting`. Fewer than
    `updates` updates say nothing, where steps are known to be updates: several between two evaluations.
    """
    metric = next((curve for curve in curves.metrics if curve.better == "higher" and curve.split in HELD_OUT), None)
    val = curves.val_loss
    if metric is None or len(metric.finite()) < at_least or _is_short(metric, updates):
        return
    values = metric.finite().values
    best, fell = float(np.max(values)), val is not None and len(shape := Shape(val)) > 0 and shape.end < 0.95 * shape.start
    if best > underfit or ((best > ground or fell) and len(values) < long):
        return
    code = "underfitting" if best > ground or fell else "not-learning"
    yield curve_finding(code, metric.finite(), len(values) - 1, onset=int(metric.steps[0]), best=best)


def _is_short(metric: Curve, updates: int) -> bool:
    return float(np.median(np.diff(metric.steps))) > 1 and int(metric.steps[-1]) < updates


def _of_single_steps(curve: Curve) -> bool:
    """Whether each point is one update: then a handful of them says nothing."""
    return curve.split == "train" and curve.epochs is None and int(curve.steps[-1]) - int(curve.steps[0]) == len(curve) - 1


def _since_warm_up(curve: Curve, curves: Curves) -> int:
    """How many of the steps were made since the learning rate first was half of its highest."""
    rate = next(iter(curves.of("lr")), None)
    if rate is None or not len(rate := rate.finite()):
        return len(curve)
    return int(np.sum(curve.steps >= rate.steps[np.argmax(rate.values >= 0.5 * rate.values.max())]))


def _may_fall(shape: Shape) -> bool:
    """Whether a noisy loss falls, or too slowly to tell: its last third against its first, and its end against its start."""
    third = len(shape) // 3
    first, last = shape.values[:third], shape.values[-third:]
    level, error = float(last.mean()), math.hypot(float(first.std()), float(last.std())) / math.sqrt(third)
    little = _LITTLE * abs(level)
    at_once = shape.start - level > max(3 * float(last.std()), little)  # what falls within the first steps has been flat since
    return at_once or float(first.mean()) - level > max(_CHANCE * error, little) or _CHANCE * error > _SEEN * abs(level)


def is_adversarial(curve: Curve) -> bool:
    """Whether a loss is one of networks that play against each other, by its name."""
    return _ADVERSARIAL.search(curve.name.lower()) is not None


def _got_better_meanwhile(curves: Curves) -> bool:
    """A metric that rose clearly: something is learned, whatever the loss says (a loss with a moving target)."""
    for curve in curves.metrics[:1]:
        shape = Shape(curve)
        if len(shape) >= 5 and shape.start - shape.end > max(0.25 * abs(shape.start), 6 * shape.noise):
            return True
    return False


def _is_good_already(curves: Curves, *, good: float = 0.8, above_chance: float = 0.05) -> bool:
    """A metric that is high, or clearly better than chance, from the beginning: the training continues a finished one."""
    for curve in curves.metrics[:1]:
        values = curve.finite().values
        good = above_chance if _NONE_BY_CHANCE.search(curve.name.lower()) is not None else good
        return curve.better == "higher" and len(values) > 0 and good <= float(values.min()) <= float(values.max()) <= 1.0
    return False


def classes_of_chance(loss: float, *, close: float = 0.01) -> int | None:
    """How many classes a loss of ln k would mean; None if it is no such number, or if k + 1 would fit about as well."""
    if not 0.5 < loss < math.log(_MOST_CLASSES):
        return None
    classes = round(math.exp(loss))
    return classes if classes > 1 and abs(math.log(classes) - loss) < close * loss else None
