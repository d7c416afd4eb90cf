"""`preprocessing-mismatch`: evaluations see inputs of another scale than those that are learned from."""

from __future__ import annotations

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.detectors.runs.fields import fields_of, label_field, of_split
from holdfast.signals.run_view import InputSample, RunView


def preprocessing_mismatch(
    run: RunView,
    *,
    times: float = 3.0,
    shift: float = 2.0,
    beyond: float = 1.5,
    samples: int = 3,
    held_out: int = 2,
    far: float = 5.0,
) -> Finding | None:
    """The deviation of held-out inputs is `times` that of the training or a part of it, or their mean is `shift` away.

    It holds at each of the last evaluations, and stands clear (`beyond` times) of every batch to learn from: data with long
    tails scatters by itself. Augmentation changes the deviation by a third at most. A run that is over and has evaluated only
    once must differ `far` more.
    """
    learned, held = fields_of(of_split(run, "train")), fields_of(of_split(run, "val"))
    for name, here in learned.items():
        there = held.get(name, [])
        evaluations = sorted({one.step for one in there})
        is_only = run.ended and len(evaluations) == 1 < held_out
        if len(here) < samples or (len(evaluations) < held_out and not is_only) or name == label_field(learned):
            continue
        least = far if is_only else 1.0
        if all(_differs(here, one, least * times, least * shift, beyond) for one in there if one.step in evaluations[-4:]):
            return _finding(run, name, here, there)
    return None


def _differs(here: list[InputSample], one: InputSample, times: float, shift: float, beyond: float) -> bool:
    if one.entropy == one.entropy or any(sample.entropy == sample.entropy for sample in here):  # whole numbers have no scale
        return False
    sizes, means = np.array([sample.deviation for sample in here]), np.array([sample.mean for sample in here])
    usual, middle = float(np.median(sizes)), float(np.median(means))
    if usual <= 0.0 or one.deviation <= 0.0:
        return False
    larger = one.deviation > times * usual and one.deviation > beyond * sizes.max()
    smaller = one.deviation < usual / times and one.deviation < sizes.min() / beyond
    away = abs(one.mean - middle)
    return bool(larger or smaller or away > max(shift * usual, beyond * shift * float(np.abs(means - middle).max())))


def _finding(run: RunView, name: str, here: list[InputSample], there: list[InputSample]) -> Finding:
    evidence = {
        "onset": 0,
        "field": name,
        "mean": float(np.median([one.mean for one in here])),
        "deviation": float(np.median([one.deviation for one in here])),
        "held_out_mean": float(np.median([one.mean for one in there])),
        "held_out_deviation": float(np.median([one.deviation for one in there])),
    }
    return Finding("preprocessing-mismatch", step=run.step, evidence=evidence)
