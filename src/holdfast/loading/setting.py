"""How a loader is set, and what was measured of it that way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

# Which of the measured settings to take. Pure.

NEARLY = 0.95  # of the best rate: as good, and the one with fewer workers is taken
COLD = 1.3  # times its first rate when measured again: then the first counts for nothing
_WORTH = 0.9  # of the best rate with that many workers: for less, prefetch and threads stay as the user has them


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the answer must keep to. `workers` and `threads` are a machine's rule; `because` says it aloud."""

    memory: int
    workers: int | None = None
    threads: int | None = None
    because: tuple[str, ...] = ()


def by_setting(trials: Sequence[Trial]) -> list[Trial]:
    """One trial for each setting: of several the mean of the rates and the larger memory. One that failed once has failed."""
    groups: dict[Setting, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.setting, []).append(trial)
    return [_joined(some) for some in groups.values()]


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
    near = [trial for trial in same if (trial.rate or 0.0) >= _WORTH * max(other.rate or 0.0 for other in same)]
    own = next((trial.setting for trial in trials if trial.own), near[0].setting)
    return min(near, key=lambda trial: (trial.setting.differences(own), -(trial.rate or 0.0)))


def allowed(trial: Trial, limits: Limits) -> bool:
    """Whether a setting fits in memory and keeps to the machine's rule."""
    fits = trial.memory is None or trial.memory <= limits.memory
    return fits and (limits.workers is None or trial.setting.workers == limits.workers)


PREFETCH = 2  # torch's own, for workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What can be changed about a loader. `prefetch` is None without workers; `threads` is None where nothing is set."""

    workers: int = 0
    prefetch: int | None = None
    threads: int | None = None  # of each worker, or of the process that loads by itself
    pin: bool = False

    def with_workers(self, workers: int) -> Setting:
        """The same with another number of workers."""
        return replace(self, workers=workers, prefetch=(self.prefetch or PREFETCH) if workers else None)

    def differences(self, other: Setting) -> int:
        """How many things are set in another way."""
        return sum(value != getattr(other, name) for name, value in asdict(self).items())

    @property
    def description(self) -> str:
        """As one would say it."""
        parts = [f"num_workers={self.workers}"]
        parts += [f"prefetch_factor={self.prefetch}"] if self.prefetch is not None else []
        parts += [f"threads={self.threads}"] if self.threads is not None else []
        return ", ".join([*parts, "pin_memory=True"] if self.pin else parts)

    @property
    def to_paste(self) -> str:
        """As it stands in a program."""
        parts = [f"num_workers={self.workers}"]
        if self.workers:
            parts += [f"prefetch_factor={self.prefetch or PREFETCH}", "persistent_workers=True"]
        parts.append(f"pin_memory={self.pin}")
        if self.workers and self.threads is not None and self.threads > 1:
            parts.append(f"worker_init_fn=lambda _: torch.set_num_threads({self.threads})")
        return f"DataLoader(..., {', '.join(parts)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What was measured. `memory` is that of the loader and its workers at their peak, less what was there before it began.

    `start_seconds` is the time until the first batch; it is no part of `rate`. `failed` says why there is no rate.
    """

    setting: Setting
    rate: float | None = None  # samples a second
    start_seconds: float | None = None
    memory: int | None = None
    batches: int = 0
    own: bool = False
    failed: str | None = None
    how: str = "done"  # raised, died, silent, outgrew, late

    def as_row(self) -> dict[str, Any]:
        """As JSON has it."""
        row = asdict(self)
        return {**row.pop("setting"), **row}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """What the user gave: how it is set, and what it loads. `cuda` is the card's name, or empty."""

    kind: str
    own: Setting
    batch: int | None
    samples: int | None
    cuda: str = ""
    notes: tuple[str, ...] = ()


PHASES = ("read", "decode", "augment", "sample", "collate", "transfer", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Where the time of a sample goes in a process that loads by itself: seconds a sample by phase."""

    seconds: dict[str, float]
    samples: int
    sample_bytes: int = 0
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> float:
        """Seconds that a sample takes."""
        return sum(self.seconds.values())
