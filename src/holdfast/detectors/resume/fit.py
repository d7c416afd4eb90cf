"""Whether losses continue where they were: levels of the first steps after a resume against the levels around the save."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from holdfast.detectors.levels import middle, usual
from holdfast.detectors.resume.runs import Resumed, RunBefore
from holdfast.signals.view import Floats

_BLOCKS = (10, 30)  # losses that make a level; more of them show a smaller step in a noisy loss
_NEAR = 128  # losses around the save that are compared with


@dataclass(frozen=True, slots=True)
class Fit:
    """The highest level after the resume against those before. `lost` is the share of what was learned that it costs."""

    level: float
    normal: float
    highest: float  # level around the save
    initial_loss: float
    lost: float
    first: float  # the very first loss, before any update
    first_stands_out: bool  # it is off, and by more than single losses are: where they are noisy, one alone says little
    is_off: bool

    def as_row(self) -> dict[str, float]:
        """The numbers, for evidence."""
        return {
            "loss": self.level,
            "normal": self.normal,
            "initial_loss": self.initial_loss,
            "first_loss": self.first,
            "lost": self.lost,
        }


class _Limits(NamedTuple):
    times: float
    sigmas: float
    lost: float
    share: float
    within: int
    active_after: int


def loss_fit(
    before: RunBefore,
    after: Resumed,
    *,
    times: float = 3.0,
    sigmas: float = 6.0,
    lost: float = 0.15,
    share: float = 0.25,
    within: int = 100,
    active_after: int = 20,
) -> Fit | None:
    """Compare every level of the first `within` losses with those around the save; None where too little is known.

    Off is a level that stands above the usual by `times` what any level around the save did, by `sigmas` deviations of those
    levels and of their logarithms, by `lost` of what the training had learned, and by `share` of the usual loss: all of them, as
    each alone happens in good health. Settled on 11 small trainings (batches of 1 to 150, dropout, wrong labels, SGD and Adam,
    four schedules) that were resumed early, in the middle and late: with everything restored none of 530 was off, and the
    highest stood at 2.2 times. Without their weights, after 200 steps and more, all were but those with batches of 1 to 8.
    """
    limits = _Limits(times, sigmas, lost, share, within, active_after)
    fits = [fit for size in _BLOCKS if (fit := _fit(before, after, size, limits)) is not None]
    return next((fit for fit in fits if fit.is_off), fits[0] if fits else None)


def _fit(before: RunBefore, after: Resumed, size: int, limits: _Limits) -> Fit | None:
    past, now = _finite(before.loss), _finite(after.loss)[: limits.within]
    if len(past) < limits.active_after or len(now) < size:
        return None
    recent = past[-max(4 * size, min(_NEAR, len(past) // 2)) :]
    near = np.concatenate([recent, _finite(before.later)[:_NEAR]])
    if len(near) < size:
        return None
    levels = levels_of(near, size)
    normal, noise = middle(recent), usual(levels).noise
    first = _finite(before.first)[:10]
    early = middle(first) if len(first) else normal
    highest, level = float(levels.max()), float(levels_of(now, size).max())
    fall = early - normal
    bar = max(limits.times * (highest - normal), limits.sigmas * noise, limits.lost * fall, limits.share * abs(normal))
    off = level - normal > bar and _log_sigmas(near, normal, level, size) > limits.sigmas
    half = normal + 0.5 * (level - normal)
    begun = float(now[0])
    return Fit(
        level=level,
        normal=normal,
        highest=highest,
        initial_loss=early,
        lost=(level - normal) / max(fall, 0.25 * abs(normal), 1e-12),
        first=begun,
        first_stands_out=begun > max(half, normal + 4 * usual(near).noise),
        is_off=off,
    )


def _log_sigmas(near: Floats, normal: float, level: float, size: int) -> float:
    """The same as a logarithm, by the scatter of single losses: small batches have long tails. Infinite where there is none."""
    if near.min() <= 0 or normal <= 0 or level <= 0:
        return np.inf
    scatter = 1.25 * usual(np.log(near)).noise / np.sqrt(size)  # of the median of so many
    return float((np.log(level) - np.log(normal)) / scatter)


def levels_of(values: Floats, size: int) -> Floats:
    """Medians of every `size` values in a row."""
    medians: Floats = np.median(np.lib.stride_tricks.sliding_window_view(values, size), axis=1)
    return medians


def _finite(values: Floats) -> Floats:
    return values[np.isfinite(values)]
