"""Weights that changed by more than updates can: `loss-divergence` where much of what was learned is lost with it, and
`non-finite-weights` where the norm has no number any more: the loss is beyond all measure again and again, not finite in
evaluations, or no longer as low as it was.
"""

from __future__ import annotations

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.detectors.levels import middle, rise_in_errors, usual_of_falling
from holdfast.detectors.loss_divergence import jumped_rate, learning_rates
from holdfast.detectors.metric_decline import HELD_OUT
from holdfast.signals.metric_direction import better
from holdfast.signals.view import Floats, SignalView, Steps

_RECENT = 8  # samples of the weights' norm in which it is looked for
_NEWEST = 8
_HUGE = 1e30
_SLIGHT_TIMES = 2.0  # as far again where the norm moved only slightly
_ERRORS, _COMPARED = 4.0, 64  # standard errors by which the loss is higher than before, in so many steps


def weights_jump(
    signals: SignalView, *, least: float = 0.3, times: float = 1.25, lost: float = 0.5, sustained: int = 12, far: float = 1.0,
    beyond: float = 50.0, slight: float = 0.05,
) -> Finding | None:  # fmt: skip
    """Between two samples the logarithm of the norm moved by `least`, and `times` as far as all updates together can move it.

    After that the loss stays `lost` of the way back to the beginning for `sustained` steps. It may be on its way down again:
    where weights were overwritten, going back is shorter. Where the norm moved by `far`, or `beyond` times as far as updates
    can, it is enough that the loss is clearly higher than before. Normalisation layers can have most of the norm: a `slight` move
    counts if the loss rose at once and no gradient before it was large. A rate that jumped is `loss-divergence` of its own.
    """
    steps, measured = signals.last("weight_norm", 64)
    norms = np.where(np.isposinf(measured), _HUGE, measured)  # one weight is enough whose square is beyond single precision
    if len(norms) < 4 or not np.isfinite(norms).all() or norms.min() <= 0.0:
        return None
    moved = np.abs(np.diff(np.log(norms)))
    recent = max(2, len(moved) - _RECENT)  # where weights were overwritten, the largest move is theirs: they grow again after it
    if len(moved) <= recent or moved[at := recent + int(np.argmax(moved[recent:]))] <= slight:  # the common case
        return None
    is_slight = bool(moved[at] <= least)
    if np.isposinf(measured[at + 1]) and (finding := _in_evaluations(signals, steps[at : at + 2], measured[at : at + 2])):
        return finding
    sized, ratios = signals.last("update_ratio", 64)
    sized, ratios = sized[np.isfinite(ratios)], ratios[np.isfinite(ratios)]
    if not beyond_updates(steps, norms, at, sized, ratios, times=(_SLIGHT_TIMES if is_slight else 1.0) * times):
        return None
    if np.isposinf(measured[at + 1]) and (finding := _beyond_numbers(signals, steps[at : at + 2], measured[at : at + 2])):
        return finding
    certain = bool(moved[at] > far or (not is_slight and beyond_updates(steps, norms, at, sized, ratios, times=beyond)))
    needed = (lost / 25, _NEWEST) if certain else (lost, sustained)
    finding = _with_loss(signals, steps[at : at + 2], measured[at : at + 2], *needed, certain=certain)
    if finding is None and len(measured) > at + 2 and np.isposinf(measured[at + 1 :]).all():
        return _stays_infinite(signals, steps, measured, at)
    return None if finding is not None and is_slight and not _rose_at_once(signals, finding) else finding


def jumped_weights(signals: SignalView, since: int, until: int, *, slight: float = 0.05, times: float = 2.5) -> dict[str, float]:
    """The norms before and after, if the weights changed from one sample to the next in these steps by more than updates can."""
    steps, norms = signals.last("weight_norm", 64)
    if len(norms) < 4 or not np.isfinite(norms).all() or norms.min() <= 0.0:
        return {}
    moved = np.abs(np.diff(np.log(norms))) * ((steps[1:] > since) & (steps[:-1] < until))
    sized, ratios = signals.last("update_ratio", 64)
    at = int(np.argmax(moved))
    sized, ratios = sized[np.isfinite(ratios)], ratios[np.isfinite(ratios)]
    if moved[at] <= slight or not beyond_updates(steps, norms, at, sized, ratios, times=times):
        return {}
    return {"weight_norm_before": float(norms[at]), "weight_norm": float(norms[at + 1])}


def beyond_updates(
    steps: Steps, norms: Floats, at: int, sized: Steps, ratios: Floats, *, times: float = 1.25, together: float = 0.75
) -> bool:
    """Whether a norm changed from sample `at` to the next by more than updates do in the steps between, and `times` that.

    `ratios` are sizes of updates against the weights, at the steps `sized`: those measured since count, or the last one before.
    Updates do not all go one way: many of them go less far than their sum (by a power of `together`). Where the norm was on its
    way there already, it may have gone on at the same pace.
    """
    moved, between = float(norms[at + 1] - norms[at]), float(steps[at + 1] - steps[at])
    paces = np.diff(norms[: at + 1]) / np.diff(steps[: at + 1])
    sizes = ratios * np.interp(sized, steps, norms)
    since = sizes[sized >= steps[at + 1]] if np.any(sized >= steps[at + 1]) else sizes[sized < steps[at + 1]][-1:]
    if not len(since) or not len(paces):
        return False
    drift = max(0.0, float(np.max(paces * np.sign(moved))))
    return bool(abs(moved) > times * max(between**together * float(np.max(since)), between * drift))


def _rose_at_once(signals: SignalView, finding: Finding, *, back: float = 0.1, large: float = 5.0) -> bool:
    """The loss was normal in the step before it rose, and the updates until then came from gradients of normal size."""
    loss_at, loss = signals.last("loss", 512)
    grad_at, norms = signals.last("grad_norm", 512)
    before, sizes = loss[loss_at < finding.onset][-1:], norms[grad_at < finding.onset][-_COMPARED:]
    evidence = finding.evidence
    limit = evidence["normal"] + back * (evidence["initial_loss"] - evidence["normal"])
    return len(before) > 0 and float(before[0]) < limit and len(sizes) > 4 and float(max(sizes[-4:])) < large * middle(sizes)


def _in_evaluations(signals: SignalView, steps: Steps, norms: Floats) -> Finding | None:
    """Batch normalisation hides a weight that was overwritten while the model trains: only held-out losses are not finite."""
    _, loss = signals.last("loss", 16)
    for split, name in signals.metrics() if np.isfinite(loss).all() else ():
        evaluated, values = signals.evaluated(split, name)
        good = evaluated[np.isfinite(values)]
        if split in HELD_OUT and better(name) == "lower" and len(good) and len(values) and not np.isfinite(values[-1]):
            onset = max(int(steps[0]), int(good[-1])) + 1
            weights = {"weight_norm_before": float(norms[0]), "weight_norm": float(norms[1])}
            evidence = {"onset": onset, "metric": name, "split": split, "evaluated_at": int(evaluated[-1]), **weights}
            return Finding("non-finite-weights", step=int(steps[1]), severity="critical", evidence=evidence)
    return None


def _beyond_numbers(
    signals: SignalView, steps: Steps, norms: Floats, *, times: float = 1e3, at_least: int = 4, window: int = 16
) -> Finding | None:
    """Only some batches may meet the weight that was overwritten: the loss of the others is as it was."""
    loss_at, loss = signals.last("loss", 512)
    early = middle(signals.first("loss", 10)[1])
    wild = ~(loss < times * max(1.0, abs(early))) & (loss_at > steps[0])
    if not np.isfinite(early) or np.sum(wild[-window:]) < at_least:
        return None
    weights = {"weight_norm_before": float(norms[0]), "weight_norm": float(norms[1])}
    onset = int(loss_at[int(np.argmax(wild))])
    evidence = {"onset": onset, "bad_losses": int(np.sum(wild[-window:])), "of": window, **weights}
    evidence |= jumped_rate(signals, onset)
    return Finding("non-finite-weights", step=int(loss_at[-1]), severity="critical", evidence=evidence)


def _stays_infinite(signals: SignalView, steps: Steps, norms: Floats, at: int, *, errors: float = 1.0) -> Finding | None:
    """Behind a ReLU such a weight may hardly show: it has taken a unit away, so the loss is rather higher than lower since."""
    loss_at, loss = signals.last("loss", 512)
    before, after = loss[loss_at <= steps[at]][-_COMPARED:], loss[loss_at >= steps[at + 1]][-_COMPARED:]
    if (
        min(len(before), len(after)) < _NEWEST
        or not np.isfinite([*before, *after]).all()
        or rise_in_errors(before, after) < errors
    ):
        return None
    evidence = {"onset": int(steps[at]) + 1, "weight_norm_before": float(norms[at]), "weight_norm": float(norms[at + 1])}
    return Finding("non-finite-weights", step=int(steps[-1]), severity="critical", evidence=evidence)


def _with_loss(
    signals: SignalView, steps: Steps, norms: Floats, lost: float, sustained: int, *, certain: bool, sigmas: float = 6.0
) -> Finding | None:
    loss_at, loss = signals.last("loss", 512)
    split = steps[0] if np.sum(loss_at <= steps[0]) >= 64 else steps[1] - 1  # it came between the two
    before, after = loss[loss_at <= split][-32:], loss[loss_at > split]  # while it learns quickly, its fall is no noise
    first = signals.first("loss", 10)[1]
    if len(before) < 32 or len(after) < sustained or not all(np.isfinite(part).all() for part in (before, after, first)):
        return None
    normal, early, level = usual_of_falling(before), middle(first), middle(after[-_NEWEST:])
    high = after > normal.value + max(lost * (early - normal.value), sigmas * normal.noise)
    onset = int(loss_at[loss_at > split][int(np.argmax(high))])
    rates = learning_rates(signals, onset)
    if certain:
        newest, usual_then = loss[loss_at >= steps[1]][-_COMPARED:], loss[loss_at <= split][-_COMPARED:]
        is_lost = (
            len(newest) >= sustained
            and middle(newest) - normal.value > lost * (early - normal.value)
            and (rise_in_errors(usual_then, newest) > _ERRORS or middle(newest) > usual_then.max())  # it falls again: no noise
        )
    else:
        is_lost = early > normal.value + sigmas * normal.noise and high[-_NEWEST:].all() and np.sum(high) >= sustained
    if not is_lost or "lr_jumped_at" in rates:
        return None
    weights = {"weight_norm_before": float(norms[0]), "weight_norm": float(norms[1])}
    evidence = {"onset": onset, "loss": level, "normal": normal.value, "initial_loss": early, **weights, **rates}
    return Finding("loss-divergence", step=int(loss_at[-1]), severity="critical", evidence=evidence)
