"""`loss-plateau`: the learning rate fell to almost nothing at once, and with it the loss stopped falling."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.detectors.levels import rise_in_errors
from holdfast.signals.run_view import RunView


def rate_dropped(
    run: RunView,
    *,
    times: float = 50.0,
    rows: int = 48,
    before: int = 32,
    fell: float = 0.1,
    still: float = 0.5,
    learns: float = 0.25,
    errors: float = 4.0,
    never: float = 300.0,
) -> Finding | None:
    """Between two steps the learning rate fell by `times` or more, and stays there for `rows` steps.

    Schedules fall by ten at once, at most, or do so again and again; and updates must have become smaller with the learning rate.
    A warning where the loss was falling (in the second half of the steps before by `fell` of itself, by half as much of what
    was learned, or by `errors` standard errors) and now falls by less than `still` of that, and of `learns` of itself: layers
    that are trained from then on, with a rate that fits them, still learn. Also where the rate fell by `never` or more, which no
    schedule does, and the loss does not fall: a noisy one may have been about to. Else info: that training was done.
    """
    steps, rates = run.finite("lr")
    falls = np.flatnonzero((rates[1:] > 0) & (rates[1:] * times <= rates[:-1])) + 1
    if len(falls) != 1 or falls[-1] < before or len(rates) - falls[-1] < rows:
        return None
    at = int(falls[-1])
    if rates[at:].max() * times > 2.0 * float(np.median(rates[:at])):  # it came up again, or had only been up for a while
        return None
    onset = int(steps[at])
    if not _updates_shrank(run, onset, by=0.4 * times):  # another optimizer, with a rate that fits it
        return None
    then, now = _fall(run, None, onset), _fall(run, onset, None)
    was_falling = then is not None and (then.size > _enough(run, fell, then.level) or then.is_clear(errors))
    falling = was_falling and then is not None and now is not None and now.size < still * then.size
    is_stalled = now is not None and now.size < learns * abs(now.size + now.level)
    evidence = {"onset": onset, "lr": float(rates[at]), "lr_before": float(rates[at - 1])}
    evidence |= {} if now is None else {"loss": now.level}
    severity = "warning" if is_stalled and (falling or rates[at] * never <= rates[at - 1]) else "info"
    return Finding("loss-plateau", step=run.step, severity=severity, evidence=evidence, series="loss")


def _updates_shrank(run: RunView, onset: int, *, by: float) -> bool:
    """Whether updates became smaller with the learning rate, as far as they were measured on both sides."""
    steps, sizes = run.finite("update_ratio")
    before, after = sizes[steps < onset], sizes[steps >= onset]
    return bool(len(before) and len(after) and by * float(np.median(after)) < float(np.median(before)))


def _enough(run: RunView, fell: float, level: float) -> float:
    """How much a loss must have fallen to be called falling: a part of itself, or half that part of all that was learned."""
    learned = float(run.whole["loss"].means[0]) - level
    return min(fell * abs(level), max(0.5 * fell * learned, 0.01 * abs(level)))


class _Fall(NamedTuple):
    """By how much a loss fell over some steps, its level then, and the fall in standard errors."""

    size: float
    level: float
    in_errors: float

    def is_clear(self, errors: float, least: float = 0.01) -> bool:
        """Whether it is no chance, and no trifle either."""
        return self.in_errors > errors and self.size > least * abs(self.level)


def _fall(run: RunView, since: int | None, until: int | None) -> _Fall | None:
    """The fall over the second half of some steps; over the whole, behind a drop."""
    steps, losses = run.finite("loss")
    chosen = (steps >= (since or 0)) & (steps < (until or run.step + 1))
    part = losses[chosen]
    part = part[len(part) // 2 :] if since is None else part
    if len(part) < 16:
        return None
    third = len(part) // 3
    first, last = float(np.median(part[:third])), float(np.median(part[-third:]))
    return _Fall(first - last, last, rise_in_errors(part[-third:], part[:third]))
