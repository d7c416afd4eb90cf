"""Which of the measured settings to take. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.data.loading.setting import Setting, Trial

NEARLY = 0.95  # of the best rate: as good, and the one with fewer workers is taken
COLD = 1.3  # times its first rate when measured again: then the first counts for nothing
_WORTH = 0.9  # of the best rate with that many workers: for less, prefetch, threads and chunks stay as the user has them


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the answer must keep to. `workers` and `threads` are a machine's rule; `because` says it aloud."""

    memory: int
    workers: int | None = None
    threads: int | None = None
    chunk: int | None = None  # rows, at most
    because: tuple[str, ...] = ()


def by_setting(trials: Sequence[Trial]) -> list[Trial]:
    """One trial for each setting: of several the mean of the rates and the larger memory. One that failed once has failed."""
    found: dict[Setting, list[Trial]] = {}
    for trial in trials:
        found.setdefault(trial.setting, []).append(trial)
    return [_joined(some) for some in found.values()]


def _joined(some: list[Trial]) -> Trial:
    rates = [trial.rate for trial in some if trial.rate is not None]
    failed = next((trial for trial in some if trial.failed), None)
    if failed is not None or not rates:
        return failed or some[0]
    memory = max((trial.memory for trial in some if trial.memory is not None), default=None)
    rates = rates[1:] if rates[-1] > COLD * rates[0] else rates  # the first had to wait for the disk, as none of the others had
    return replace(some[-1], rate=sum(rates) / len(rates), memory=memory, own=any(trial.own for trial in some))


def chosen(trials: Sequence[Trial], limits: Limits) -> Trial | None:
    """The fastest that fits; of those nearly as fast the one with the fewest workers, then the one most like the user's own."""
    able = [trial for trial in by_setting(trials) if trial.rate is not None and allowed(trial, limits)]
    if not able:
        return None
    best = max(trial.rate or 0.0 for trial in able)
    workers = min(trial.setting.workers for trial in able if (trial.rate or 0.0) >= NEARLY * best)
    same = [trial for trial in able if trial.setting.workers == workers]
    near = [trial for trial in same if (trial.rate or 0.0) >= _WORTH * max(one.rate or 0.0 for one in same)]
    own = next((trial.setting for trial in trials if trial.own), near[0].setting)
    return min(near, key=lambda trial: (trial.setting.differences(own), trial.setting.chunk or 0, -(trial.rate or 0.0)))


def allowed(trial: Trial, limits: Limits) -> bool:
    """Whether a setting fits in memory and keeps to the machine's rule."""
    fits = trial.memory is None or trial.memory <= limits.memory
    small = limits.chunk is None or trial.setting.chunk is None or trial.setting.chunk <= limits.chunk
    return fits and small and (limits.workers is None or trial.setting.workers == limits.workers)
