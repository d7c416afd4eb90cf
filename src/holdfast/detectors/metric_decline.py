"""`metric-decline`: several evaluations in a row, each worse than the one before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from holdfast.detectors.evaluations import IN_A_ROW, clear_fall, has_found_nothing, is_nothing_yet, main_metrics
from holdfast.detectors.finding import Finding
from holdfast.detectors.loss_divergence import rate_restarted
from holdfast.signals.metric_direction import better
from holdfast.signals.view import SignalView

_AT_FIRST = 5  # training losses
HELD_OUT = ("val", "valid", "validation", "eval", "test", "dev")


def metric_decline(
    signals: SignalView, *, in_a_row: int = IN_A_ROW, noise: float = 3.0, of_learned: float = 0.05
) -> Finding | None:
    """Look at each metric of held-out data for `in_a_row` evaluations that got worse.

    Three worse ones in a row happen by chance once in 24 times. So the whole decline must also be `noise` times the usual
    step between two evaluations before it, or, where there were too few, a tenth of the value; of a loss also `of_learned` of
    all that was learned, for near its best a steady loss moves little. And not half of the other metrics may have got better
    meanwhile: recall falls where precision rises. A warm restart of the learning rate costs some of the metric for a while.
    """
    for split, name, way in judged(signals):
        steps, values = signals.evaluated(split, name)
        tail = values[-(in_a_row + 1) :] * (1 if way == "higher" else -1)
        if len(tail) <= in_a_row or not np.isfinite(tail).all() or not (np.diff(tail) < 0).all():
            continue
        needed = clear_fall(values[:-in_a_row].tolist(), noise=noise)
        if way == "lower":
            before = signals.first("loss", _AT_FIRST if name == "loss" else 0)[1]  # the first evaluation may come late
            needed = max(needed, of_learned * float(np.max([values[0], *before]) - values.min()))
        if is_nothing_yet(values.tolist(), way) or float(tail[0] - tail[-1]) < needed or found_nothing(signals, split):
            continue
        since = int(steps[-in_a_row - 1])
        if others_improve(signals, split, name, since=since) or rate_restarted(signals, since):
            continue
        evidence = {
            "onset": int(steps[-in_a_row]),
            "metric": name,
            "split": split,
            "values": values[-(in_a_row + 1) :],
            "best": float(values.max() if way == "higher" else values.min()),
            "best_step": int(steps[int(values.argmax() if way == "higher" else values.argmin())]),
            "in_a_row": in_a_row,
        }
        return Finding("metric-decline", step=int(steps[-1]), evidence=evidence)
    return None


def judged(signals: SignalView) -> Iterator[tuple[str, str, str]]:
    """Split, name and better direction of the metrics of held-out data that are judged.

    Precision and recall at one threshold trade places while a detector learns: average precision is judged instead of them.
    """
    for split in HELD_OUT:
        names = [name for of, name in signals.metrics() if of == split]
        main = main_metrics(name for name in names if better(name) == "higher")
        yield from ((split, name, way) for name in names if (way := better(name)) == "lower" or (way and name in main))


def found_nothing(signals: SignalView, split: str) -> bool:
    """Whether the model has not found anything of a split yet: then neither its losses nor its other metrics are judged."""
    high = [name for of, name, way in judged(signals) if of == split and way == "higher"]
    return has_found_nothing({name: signals.evaluated(split, name)[1] for name in high})


def others_improve(signals: SignalView, split: str, name: str, *, since: int) -> bool:
    """Whether half of the other metrics of these evaluations are better now than they were at step `since`.

    A metric that was never good enough to fall says nothing. Of a loss, the metrics that are better when higher decide, where
    there are any and one of them moved.
    """
    of_loss = better(name) == "lower"
    changes: dict[str, list[float]] = {"higher": [], "lower": []}
    for of, other, way in judged(signals):
        if of != split or other == name:
            continue
        steps, values = signals.evaluated(split, other)
        recent, counts = values[steps >= since], of_loss or way == "lower" or not has_found_nothing({other: values})
        if counts and len(recent) > 1 and np.isfinite(recent[[0, -1]]).all():
            changes[way].append(float(recent[-1] - recent[0]) * (1 if way == "higher" else -1))
    counted = changes["higher"] if of_loss and any(changes["higher"]) else changes["higher"] + changes["lower"]
    return bool(counted) and 2 * sum(change > 0 for change in counted) >= len(counted)
