"""Whether a command that ended badly is started again, with what change, and after how long a wait. Pure.

Bounded three ways: so many restarts at most, none for a mistake in the script that shows before the first step, and none
after two in a row that came no further than the one before. A script that ends before its first step with its own flag for
resuming is started without it, once: that belongs to the same restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

_MISTAKES = (  # in the script, not in the world: the next attempt meets the same line
    *("NameError", "ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError", "AttributeError"),
    *("TypeError", "UnboundLocalError", "NotImplementedError"),
)
_USAGE = 2  # how argparse ends a script
_IN_VAIN = 2
_WAIT, _WAIT_AT_MOST = 1.0, 60.0  # seconds, doubled after each restart that did not help
_NUMBERS = ("loss-divergence", "non-finite-loss", "non-finite-gradient", "non-finite-weights", "metric-collapse")
_OUT_OF_GPU_MEMORY, _OUT_OF_MEMORY, _LOADER = "gpu-out-of-memory", "host-out-of-memory", "loader-stall"
_TRACKER = "tracker-unreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How one attempt ended. `reached` is the newest step, counted over all attempts; `code` is that of its finding."""

    code: str
    exit_code: int
    requested: bool = False  # by a person, or whoever sent the supervisor a signal
    error: str | None = None  # the class of the error that ended it, if one is known
    steps: int = 0  # made in this attempt
    reached: int | None = None
    checkpoint: str | None = None  # what the next attempt would continue from
    checkpoint_step: int | None = None
    workers: int | None = None  # of the loader
    with_flag: bool = False  # it was started with the script's own flag for resuming
    rolled_back: bool = False  # ended to be started again from before the trouble, with its learning rate
    catching_up: bool = False  # it had begun to train, and had not come to a step of its own
    stopped_early: bool = False  # by itself, while it was fast-forwarded: it counts evaluations that do not get better
    explained: bool = False  # its last step met a batch or weights with which none can be made: no matter of the learning rate

    @property
    def flag_failed(self) -> bool:
        """Whether it ended before its first step with that flag: the next attempt goes without it."""
        return self.with_flag and not self.steps


@dataclass(frozen=True, slots=True)
class Changes:
    """What is different in the next attempt; the environment carries it into the process."""

    workers: int | None = None
    parts: int = 1
    lr_factor: float = 1.0
    lr_limit: float | None = None  # for a rate that had jumped above it
    trackers_offline: bool = False
    catch_up: str = ""  # "slowly": while it is fast-forwarded, all passes are run; "never": it is not

    def sentences(self) -> list[str]:
        """As a person reads them."""
        parts = [f"{self.workers} loader workers"] if self.workers is not None else []
        parts += [f"every batch in {self.parts} parts"] if self.parts > 1 else []
        parts += [f"learning rate x {self.lr_factor:g}"] if self.lr_factor != 1.0 else []
        parts += [f"learning rate kept under {self.lr_limit:g}"] if self.lr_limit is not None else []
        parts += ["forward and backward passes run while it is fast-forwarded"] if self.catch_up == "slowly" else []
        return parts + (["trackers offline"] if self.trackers_offline else [])


@dataclass(frozen=True, slots=True)
class Restart:
    """Start it again."""

    changes: Changes
    wait: float
    because: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave it at that. `why` is None where there is nothing to say: it was asked for, or is well."""

    why: str | None = None


def decide(endings: Sequence[Ending], changes: Changes = Changes(), *, at_most: int = 3) -> Restart | Stop:  # noqa: B008 - frozen
    """What to do after the last of these endings; `changes` are those that the last attempt ran with."""
    last = endings[-1]
    if last.exit_code == 0 or last.requested:
        return Stop()
    if last.flag_failed:
        return Restart(changes, _WAIT, last.code)
    endings = [ending for ending in endings if not ending.flag_failed]
    if mistake := _mistake(last):
        return Stop(f"not restarted: {mistake}")
    if len(endings) > at_most:
        made = f"{at_most} restarts were made, and no more are allowed" if at_most else "restarts are off"
        return Stop(f"not restarted: {made} (--restarts)")
    vain = in_vain(endings)
    if vain >= _IN_VAIN:
        return Stop(f"not restarted: {vain + 1} attempts ended at {_place(last)}")
    is_first = not any(ending.code in _NUMBERS for ending in endings[:-1])
    more = _changed(last, changes, vain, spares_rate=last.rolled_back or (last.explained and is_first))
    return Restart(more, min(_WAIT_AT_MOST, _WAIT * 2**vain), last.code)


def in_vain(endings: Sequence[Ending]) -> int:
    """How many of the last attempts came no further than one before them."""
    count = 0
    for number in range(len(endings) - 1, 0, -1):
        if _further(endings[number], endings[:number]):
            break
        count += 1
    return count


def _further(ending: Ending, before: Sequence[Ending]) -> bool:
    newest = max((past.checkpoint_step or 0 for past in before), default=0)
    if (ending.checkpoint_step or 0) > newest:
        return True
    furthest = max((past.reached if past.reached is not None else -1 for past in before), default=-1)
    return (ending.reached if ending.reached is not None else -1) > furthest


def _mistake(ending: Ending) -> str | None:
    if ending.steps:
        return None
    if ending.exit_code == _USAGE:
        return "it ended with code 2 before the first step, as for wrong arguments"
    if ending.error in _MISTAKES:
        return f"{ending.error} before the first step is a mistake in the script"
    return None


def _place(ending: Ending) -> str:
    return "the beginning" if ending.reached is None else f"step {ending.reached:,} or before"


def _changed(ending: Ending, now: Changes, vain: int, *, spares_rate: bool) -> Changes:
    """The change that the diagnosis asks for. A loader that stalls gets fewer workers only when it does so again."""
    workers, parts, factor = now.workers, now.parts, now.lr_factor
    again = ending.code == _LOADER and vain > 0
    if (ending.code == _OUT_OF_MEMORY or again) and ending.workers:
        workers = ending.workers // 2
    if ending.code == _OUT_OF_GPU_MEMORY:
        parts *= 2
    if ending.code in _NUMBERS and not spares_rate:
        factor *= 0.5
    return replace(
        now,
        workers=workers,
        parts=parts,
        lr_factor=factor,
        trackers_offline=now.trackers_offline or ending.code == _TRACKER,
        catch_up="never" if ending.stopped_early else now.catch_up or ("slowly" if ending.catching_up else ""),
    )
