"""Which state was probably not restored: what was seen of the load, and what the first steps say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from holdfast.detectors.evaluations import has_found_nothing
from holdfast.detectors.levels import middle
from holdfast.detectors.resume.fit import Fit
from holdfast.detectors.resume.runs import Restored, Resumed, RunBefore
from holdfast.signals.metric_direction import better
from holdfast.signals.view import Floats


class Suspect(NamedTuple):
    """A state that was probably not restored: `proven` by numbers, or only not seen to be; and the evidence."""

    name: str  # learning-rate, moments, weights, normalisation, data-position
    proven: bool
    evidence: dict[str, Any]


def suspects(before: RunBefore, after: Resumed, restored: Restored, fit: Fit | None) -> list[Suspect]:
    """All of them, the most likely first."""
    suspected = [
        one
        for look in (_weights, _learning_rate, _moments, _normalisation, _data_position)
        if (one := look(before, after, restored, fit)) is not None
    ]
    return sorted(suspected, key=lambda one: not one.proven)


def off_from_the_start(before: RunBefore, after: Resumed, restored: Restored, fit: Fit | None) -> bool:
    """Whether losses are off though no update can have made them so: the first was off, or updates are as they were."""
    if fit is None or not fit.is_off:
        return False
    as_they_were = restored.optimizer != "empty" and _times_rate(before, after) is None
    return fit.first_stands_out or as_they_were


def _weights(before: RunBefore, after: Resumed, restored: Restored, fit: Fit | None) -> Suspect | None:
    """Nothing, or too little, of the model was in what was loaded; or nothing was loaded, and the loss begins as high as ever."""
    of, missing = restored.count("of"), restored.count("missing")
    evidence: dict[str, Any] = {} if not missing else {"weights": of, "weights_missing": missing}
    if of and missing >= 0.5 * of:
        begins_anew = fit is not None and fit.lost > 0.3
        return Suspect("weights", begins_anew, evidence)
    off = off_from_the_start(before, after, restored, fit)
    return Suspect("weights", True, evidence) if off and (missing or restored.weights is None) else None


def _learning_rate(before: RunBefore, after: Resumed, restored: Restored, fit: Fit | None) -> Suspect | None:
    """The rate begins again as the run before began, or is another one and the losses show it, or is much higher."""
    times = _times_rate(before, after)
    if times is None:
        return None
    now = _positive(after.lr)
    evidence = {"lr": float(now[0]), "lr_before": float(now[0]) / times}
    on_purpose = restored.scheduler == "loaded" and restored.optimizer == "loaded"  # a schedule that starts over by itself
    first = _positive(before.lr_first)
    as_new = restored.optimizer == "empty" and len(first) > 0 and bool(np.isclose(now[0], first[0], rtol=0.02))
    if as_new or (_same_course(now, first) and not on_purpose):
        return Suspect("learning-rate", True, {**evidence, "lr_as_at_start": True})
    off = fit is not None and fit.is_off and not off_from_the_start(before, after, restored, fit)
    return Suspect("learning-rate", off, evidence) if off or (times > 1.5 and not on_purpose) else None


def _times_rate(before: RunBefore, after: Resumed, *, differs: float = 1.2) -> float | None:
    """The first learning rate against the last one before the save, or the next one of a run that continued; None if it fits."""
    past, now = _positive(before.lr), _positive(after.lr)
    if not len(past) or not len(now):
        return None
    expected = [float(past[-1]), *_positive(before.lr_later)[:1].tolist()]
    times = min((float(now[0]) / rate for rate in expected), key=lambda ratio: abs(np.log(ratio)))
    return None if 1 / differs < times < differs else times


def _moments(before: RunBefore, after: Resumed, restored: Restored, fit: Fit | None, *, times: float = 1.6) -> Suspect | None:
    """The optimizer began empty. Adam's first updates are then two to twenty times as long as those before the save.

    With everything restored they were once as long, and 1.6 times at most, over the same trainings as `loss_fit`.
    """
    if restored.optimizer != "empty":
        return None
    evidence: dict[str, Any] = {"optimizer_state": "empty"}
    longer = stride_against(before, after)
    if longer is not None:
        evidence["update_times"] = longer
    jumped = fit is not None and fit.is_off and not off_from_the_start(before, after, restored, fit)
    return Suspect("moments", jumped or (longer is not None and longer > times), evidence)


def _normalisation(before: RunBefore, after: Resumed, restored: Restored, fit: Fit | None) -> Suspect | None:
    """Statistics were not in what was loaded; or the whole model was, and is off from the first loss, or in evaluation only."""
    statistics = restored.count("missing_statistics")
    if statistics and not 2 * restored.count("missing") >= restored.count("of"):
        return Suspect("normalisation", True, {"statistics_missing": statistics})
    whole = restored.weights is not None and not restored.count("missing")
    if whole and off_from_the_start(before, after, restored, fit):
        return Suspect("normalisation", True, {})
    if fit is not None and not fit.is_off and (worse := _evaluated_worse(before, after)) is not None:
        return Suspect("normalisation", True, worse)
    return None


def _data_position(before: RunBefore, after: Resumed, _: Restored, fit: Fit | None) -> Suspect | None:
    """It was saved in the middle of a pass, and the first pass after the resume was a whole one."""
    whole, into, now = before.pass_steps, before.into_pass, after.pass_steps
    if whole is None or into is None or now is None or (fit is not None and fit.is_off):
        return None
    if not 0.02 * whole < into < 0.98 * whole or abs(now - whole) > max(1, 0.01 * whole):
        return None
    return Suspect("data-position", False, {"steps_of_a_pass": whole, "saved_after": into, "first_pass": now})


def stride_against(before: RunBefore, after: Resumed) -> float | None:
    """How long the first updates are against those before the save, both per learning rate."""
    past, now = _positive(before.stride)[-6:], _positive(after.stride)
    return middle(now) / middle(past) if len(past) >= 2 and len(now) else None


def _evaluated_worse(before: RunBefore, after: Resumed) -> dict[str, Any] | None:
    """The first evaluation of a metric, if it is far worse than all of the last ones before the save."""
    return next(_worse(before, after), None)


def _worse(before: RunBefore, after: Resumed) -> Iterator[dict[str, Any]]:
    high = [(*key, values) for key, values in before.evaluations.items() if better(key[1]) == "higher"]
    splits = {split for split, _ in after.evaluations}
    nothing = {split: has_found_nothing({name: values for of, name, values in high if of == split}) for split in splits}
    for (split, name), values in after.evaluations.items():
        way, past = better(name), before.evaluations.get((split, name))
        if way is None or past is None or len(past) < 3 or not len(values) or nothing[split]:
            continue
        sign = 1.0 if way == "lower" else -1.0
        last, first = sign * past[-max(3, min(10, len(past) // 2)) :], sign * float(values[0])
        room = max(float(np.ptp(last)), 0.25 * abs(float(np.median(last))))
        if np.isfinite(last).all() and first > float(last.max()) + room:
            yield {"metric": name, "split": split, "value": float(values[0]), "value_before": float(past[-1])}


def _same_course(now: Floats, first: Floats, *, close: float = 0.02) -> bool:
    """Whether a learning rate runs as another one did, over the steps that are there."""
    count = min(len(now), len(first), 20)
    return count >= 3 and bool(np.allclose(now[:count], first[:count], rtol=close))


def _positive(values: Floats) -> Floats:
    return values[np.isfinite(values) & (values > 0)]
