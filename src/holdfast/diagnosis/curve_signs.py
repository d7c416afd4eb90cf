"""Signs in the curves of a run that support one cause or contradict another, each with its numbers in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from holdfast.detectors.curves.shape import Shape
from holdfast.detectors.finding import Finding
from holdfast.detectors.weights_jump import beyond_updates
from holdfast.signals.curves import Curve, Curves, Floats

Sign = tuple[str, str]  # its name, and what is seen, in words
_HUGE_RATE = 0.5
_STILL, _FELL = 0.02, 0.05  # of the whole fall, in the last tenth; of the first loss: less is no fall that could go on
_SMOOTHER = 5.0
_BETWEEN = ("metric-collapse", "metric-decline")  # they began somewhere between two evaluations
_LASTING = ("loss-plateau", "not-learning", "underfitting", "overfitting", "loss-oscillation")  # all that came before counts
_EARLY_STEPS, _EARLY_SHARE = 100, 0.1  # of the run
_JUMP, _RESTART, _HELD, _NEAR_STEPS = 3.0, 1.5, 5, 20  # times, times what it was at most, points before it, steps
_MOMENTUM = 20.0  # times one update, that it comes to with the updates after it
_WEIGHTS = 0.3  # of a logarithm: the norm of all weights changes by a third between two samples
_SLOW = 0.2  # fraction of the step that may be spent waiting for data


def signs_of(curves: Curves, findings: Sequence[Finding]) -> dict[str, str]:
    """The signs that are present."""
    onset = min((finding.onset for finding in findings), default=None)
    late = (*_BETWEEN, *_LASTING)
    until = max((finding.step if finding.code in late else finding.onset for finding in findings), default=None)
    signs = [
        *_of_rate(curves, onset, until),
        *_of_beginning(curves, onset),
        *_of_norm(curves, onset),
        *_of_losses(curves),
        *_of_metrics(curves),
        *_of_time(curves),
    ]
    signs += [sign for start in {finding.onset for finding in findings} for sign in _of_weights(curves, start)]
    stays = any(finding.code in ("loss-divergence", "metric-collapse") for finding in findings)
    for finding in findings:
        if finding.evidence.get("recovered") and not stays:
            signs.append(("recovered", "the loss recovered without intervention"))
        if finding.code in ("not-learning", "non-finite-loss") and onset is not None and onset <= _first_step(curves):
            signs.append(("from-the-start", "it started at the first point"))
        if (jumped_at := finding.evidence.get("lr_jumped_at")) is not None:  # long curves are of blocks: this is the step
            then, now = (float(finding.evidence[name]) for name in ("lr_before", "lr"))
            signs.append(("lr-jumped", f"the learning rate jumped from {then:.3g} to {now:.3g} at step {jumped_at:,}"))
        if (classes := finding.evidence.get("classes")) is not None:
            signs.append(("at-chance", f"the loss is that of guessing among {classes} classes (ln {classes})"))
        elif "entropy" in finding.evidence:  # the finding itself says of which
            signs.append(("at-chance", ""))
    return dict(signs)


def _of_rate(curves: Curves, onset: int | None, until: int | None) -> Iterable[Sign]:
    curve = next(iter(curves.of("lr")), None)
    if curve is None or not len(curve.finite()):
        return
    curve = curve.finite()
    rate = curve.values
    jumped = [] if onset is None or until is None else list(_of_jump(curve, onset, until))
    yield from jumped
    rate = rate[: max(1, int(np.searchsorted(curve.steps, until, side="right")))] if until is not None else rate
    peak, last = float(rate.max()), float(rate[-1])  # until then: what came after it caused nothing
    if peak >= _HUGE_RATE:
        yield "lr-huge", f"the learning rate was {peak:g}"
    if float(curve.values.max()) == 0.0:
        yield "lr-zero", "the learning rate is 0"
    elif last < 0.05 * peak and not jumped:
        yield "lr-decayed", f"the schedule had lowered the learning rate from {peak:.3g} to {last:.3g}"
    elif len(rate) > 3 and float(np.ptp(rate)) < 0.01 * peak:
        yield "lr-constant", f"the learning rate was constant until then ({last:.3g})"
    if onset is not None and not jumped:
        before = curve.values[curve.steps <= onset]
        if len(before) > 1 and before[-1] >= 0.9 * before.max() and before[0] < 0.5 * before.max():
            yield "lr-rising", f"the learning rate had just been raised to {before[-1]:.3g}"


def _of_beginning(curves: Curves, onset: int | None) -> Iterable[Sign]:
    """Whether it began early in the run, and whether the learning rate was warmed up until then."""
    first = _first_step(curves)
    if onset is None or onset - first > min(_EARLY_STEPS, _EARLY_SHARE * curves.steps):
        return
    yield "begins-early", ""
    curve = next(iter(curves.of("lr")), None)
    if curve is not None and len(curve := curve.finite()) > 1 and curve.values[0] < 0.5 * curve.values.max():
        yield "lr-warmed-up", ""


def _of_jump(curve: Curve, onset: int, until: int) -> Iterable[Sign]:
    """A learning rate that jumped above its highest value shortly before the onset; a warm restart only returns to it."""
    near = max(_NEAR_STEPS, (int(curve.steps[-1]) - int(curve.steps[0])) // 50)
    for place in range(_HELD, len(curve)):
        then, now, step = float(curve.values[place - 1]), float(curve.values[place]), int(curve.steps[place])
        highest_before = float(curve.values[:place].max())
        if onset - near <= step <= until + near // 4 and now > _JUMP * then > 0 and now > _RESTART * highest_before:
            yield "lr-jumped", f"the learning rate jumped from {then:.3g} to {now:.3g} at step {step:,}"
            return


def _of_norm(curves: Curves, onset: int | None) -> Iterable[Sign]:
    curve = next(iter(curves.of("norm")), None)
    if curve is None or len(curve := curve.finite()) < 5:
        return
    level, early = float(np.median(curve.values[-max(3, len(curve) // 10) :])), float(np.median(curve.values[: len(curve) // 2]))
    if level < 1e-4:
        yield "norms-tiny", f"the gradients are almost zero (norm {level:.1e})"
    elif level > 5 * early:
        yield "norms-grew", f"the gradient norm grew from {early:.3g} to {level:.3g}"
    else:
        yield "norms-healthy", f"the gradient norm is normal ({level:.3g})"
    if onset is not None and onset > curve.steps[0]:  # the first gradients of a training are often its largest
        near = curve.values[np.abs(curve.steps - onset) <= max(1, (curve.steps[-1] - curve.steps[0]) // 20)]
        if len(near) and float(near.max()) > 5 * early:
            yield "norms-jumped", f"the gradient norm jumped to {float(near.max()):.3g} (normally {early:.3g})"


def _of_weights(curves: Curves, onset: int) -> Iterable[Sign]:
    """A norm of the weights that changed at the onset by more than the updates between two samples can explain."""
    curve, sizes = (_named(curves, name) for name in ("weight_norm", "update_ratio"))
    if curve is None or sizes is None or not len(sizes) or len(curve) < 4 or curve.values.min() <= 0:
        return
    place = int(np.searchsorted(curve.steps, onset))  # the first sample from there on
    if not 3 <= place < len(curve):
        return
    then, now = float(curve.values[place - 1]), float(curve.values[place])
    if abs(now - then) < _of_gradients(curves, int(curve.steps[place - 1]), int(curve.steps[place])):
        return
    if abs(np.log(now / then)) > _WEIGHTS and beyond_updates(curve.steps, curve.values, place - 1, sizes.steps, sizes.values):
        yield "weights-jumped", f"the norm of the weights jumped from {then:.3g} to {now:.3g}"


def _of_gradients(curves: Curves, since: int, until: int) -> float:
    """How far plain updates with momentum can move weights in these steps: one huge gradient moves them far."""
    norm, rate = (next(iter(curves.of(role)), None) for role in ("norm", "lr"))
    if norm is None or rate is None:
        return 0.0
    here = (norm.steps >= since) & (norm.steps <= until) & np.isfinite(norm.values)
    largest = float(np.max(norm.values[here] * np.interp(norm.steps[here], rate.steps, rate.values), initial=0.0))
    return _MOMENTUM * largest


def _named(curves: Curves, name: str) -> Curve | None:
    return next((curve.finite() for curve in curves.curves if curve.name == name), None)


def _of_losses(curves: Curves) -> Iterable[Sign]:
    train, val = _shape(curves.train_loss), _shape(curves.val_loss)
    yield from _of_ends(curves)
    if train is None or val is None or len(train) < 3 or len(val) < 3:
        return
    if train.end < 0.25 * abs(val.end) and train.start > 0:
        yield "memorised", f"the training loss is {train.end:.3g}, the validation loss {val.end:.3g}"
    if val.best > 0.97 * val.start > 0 and train.end < 0.8 * train.start:
        yield "never-better", f"the validation loss never fell clearly below its first value ({val.start:.3g})"
    if val.best_at < 0.5 * len(val):
        share = 100 * (val.best_at + 1) / len(val)
        yield "trained-on", f"the best validation loss came after {share:.0f} % of the run"
    if train.start - train.end < 0.3 * abs(train.start) and abs(train.end - val.end) < 0.2 * abs(val.end):
        yield "both-high", f"both losses stay high ({train.end:.3g} and {val.end:.3g})"


def _of_ends(curves: Curves) -> Iterable[Sign]:
    """How the training loss ends, and how much less it jumps than the held-out one."""
    train = None if curves.train_loss is None else curves.train_loss.finite().values
    if train is None or len(train) < 20:
        return
    fall, late = float(np.mean(train[:3]) - np.mean(train[-3:])), train[-len(train) // 5 :]
    before, after = (float(np.median(part)) for part in np.array_split(late, 2))
    if fall > _FELL * abs(float(np.mean(train[:3]))) and before - after > _STILL * fall:
        yield "still-falling", f"the training loss was still falling at the end (median {before:.3g} → {after:.3g})"
    val = None if curves.val_loss is None else curves.val_loss.finite().values
    if val is not None and len(val) >= 10 and _jumps(val) > _SMOOTHER * _jumps(train):
        yield "train-is-smooth", "the training loss changes far less from point to point than the validation loss"


def _jumps(values: Floats) -> float:
    """The usual move from one point to the next, as a share of the level."""
    return float(np.median(np.abs(np.diff(values)))) / max(float(np.median(np.abs(values))), 1e-12)


def _of_metrics(curves: Curves) -> Iterable[Sign]:
    for curve in curves.metrics[:1]:
        shape = Shape(curve)
        if len(shape) < 5:
            continue
        tail = curve.finite().values[-max(5, len(shape) // 3) :]
        if float(np.ptp(tail)) == 0.0 and 0.0 < abs(float(tail[0])) < 1.0:
            yield "metric-constant", f"{curve.name} is exactly {float(tail[0]):.3g} at every evaluation"
        if shape.end < shape.start and shape.end <= shape.best + 0.02 * abs(shape.best):
            yield "metric-still-best", f"{curve.name} is still at its best ({shape.shown(shape.end):.3g})"


def _of_time(curves: Curves) -> Iterable[Sign]:
    waited, step = next(iter(curves.of("data_seconds")), None), next(iter(curves.of("seconds")), None)
    if waited is None or step is None or not len(step.finite()):
        return
    total = float(np.median(step.finite().values))
    share = float(np.median(waited.finite().values)) / total if total else 0.0
    if share > _SLOW:
        yield "waits-for-data", f"{100 * share:.0f} % of each step is spent waiting for data"


def _shape(curve: Curve | None) -> Shape | None:
    return None if curve is None else Shape(curve)


def _first_step(curves: Curves) -> int:
    return min((int(curve.steps[0]) for curve in curves.curves if len(curve)), default=0)
