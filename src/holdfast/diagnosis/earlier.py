"""What differs between a run and the last good run of the same script."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.diagnosis.causes import Fix
from holdfast.diagnosis.run_settings import Settings, settings_of, steps_of
from holdfast.errors import HoldfastError
from holdfast.signals.lineage import same_script
from holdfast.signals.run_folder import RunFolder

_SAME = 0.05  # numbers that are so close to each other are one setting
_LOOKED_AT = 20  # runs, of the last ones
_FEWEST_STEPS = 20  # of a run that can be called good
_NUM_SHOWN = 3
_SIGNS = {
    ("learning rate", True): "lr-above-good",
    ("learning rate", False): "lr-below-good",
    ("batch size", True): "batch-above-good",
    ("batch size", False): "batch-below-good",
    ("loader workers", True): "workers-above-good",
}
_FIXED = {"learning rate": "lr", "batch size": "batch_size", "weight decay": "weight_decay", "clip norm": "clip_norm"}
_FIXED |= {"loader workers": "num_workers"}
_NOT_TO_SET = ("code", "torch", "ranks")
_NO_CAUSE = re.compile(r"epoch|step|iter|name|out|dir|path|log|seed|save|resume|verbose|wandb|project")  # of an argument


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting, in the good run and in this one; None if a run has no such setting."""

    setting: str
    then: float | str | None
    now: float | str | None

    @property
    def words(self) -> str:
        """Both values."""
        return f"{self.setting} {_shown(self.then)} → {_shown(self.now)}"

    @property
    def fix(self) -> Fix | None:
        """How to go back, if it is a setting."""
        if self.setting in _NOT_TO_SET or self.then is None:
            return None
        words = f"set the {self.setting} back to" if self.setting in _FIXED else f"go back to {self.setting}"
        return Fix(f"{words} {_shown(self.then)}", setting=_FIXED.get(self.setting, self.setting), op="set", value=self.then)


@dataclass(frozen=True, slots=True)
class Earlier:
    """The last good run of the same script, and what is different now."""

    name: str
    differences: tuple[Difference, ...]

    def signs(self) -> dict[str, str]:
        """What supports one cause or another."""
        words = "; ".join(difference.words for difference in self.differences[:_NUM_SHOWN])
        more = f"; and {len(self.differences) - _NUM_SHOWN} more" if len(self.differences) > _NUM_SHOWN else ""
        by_name = {"changed-since-good": f"run {self.name} (same script) was healthy; changed since: {words}{more}"}
        if len(self.differences) == 1:
            by_name["only-that-changed"] = "no other visible difference"
        for one in self.differences:
            if isinstance(one.then, float) and isinstance(one.now, float):
                sign = _SIGNS.get((one.setting, one.now > one.then))
                by_name |= {sign: f"{one.words} since run {self.name}, which was healthy"} if sign else {}
            elif one.setting == "clip norm" and one.now == "none":
                by_name["clip-gone"] = f"run {self.name}, which was healthy, clipped at {_shown(one.then)}"
        return by_name

    def fixes(self) -> tuple[Fix, ...]:
        """How to go back to the settings of the good run."""
        return tuple(fix for difference in self.differences if (fix := difference.fix) is not None)[:_NUM_SHOWN]


def last_good(run: RunFolder, healthy: Callable[[RunFolder], bool]) -> Earlier | None:
    """Compare with the newest run beside this one that ran the same script before it, to its end, and was healthy."""
    started, steps = run.info().get("started"), steps_of(run)
    if started is None or not steps:
        return None
    for other in (other for other in _before(run, float(started)) if _came_to_its_end(other) and healthy(other)):
        differences = _compare(settings_of(other, steps=steps), settings_of(run, steps=steps_of(other)))
        return Earlier(other.name, differences) if differences else None
    return None


def _before(run: RunFolder, started: float) -> list[RunFolder]:
    """Earlier runs of the script, newest first."""
    runs, ours = [], run.info()
    for path in run.path.parent.glob("*/run.json"):
        if path.parent.is_symlink() or path.parent == run.path:
            continue
        try:
            other = RunFolder.open(path.parent)
        except (OSError, HoldfastError):
            continue
        begun = other.info().get("started")
        if isinstance(begun, (int, float)) and begun < started and same_script(ours, other.info()):
            runs.append((float(begun), other))
    newest = sorted(runs, key=lambda one: -one[0])[:_LOOKED_AT]
    return [other for _, other in newest]


def _came_to_its_end(run: RunFolder) -> bool:
    return run.info().get("exit_code") == 0 and steps_of(run) >= _FEWEST_STEPS


def _compare(then: Settings, now: Settings) -> tuple[Difference, ...]:
    """What differs, the settings of the training before those of the command: they often say the same."""
    names = sorted(dict.fromkeys((*then, *now)), key=lambda name: name.startswith(("-", "argument")))
    differences: list[Difference] = []
    for name in names:
        difference = Difference(name, then.get(name), now.get(name))
        if name in _FIXED and None in (difference.then, difference.now):
            continue  # it was not measured in one of them, which is no difference
        if name.startswith("-") and _NO_CAUSE.search(name):
            continue  # how long it trains, or what it is called, breaks nothing
        if not _alike(difference.then, difference.now) and not any(_is_same(one, difference) for one in differences):
            differences.append(difference)
    return tuple(differences)


def _alike(one: float | str | None, other: float | str | None) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= _SAME * max(abs(one), abs(other))
    return one == other


def _is_same(difference: Difference, other: Difference) -> bool:
    """Whether `--lr 0.1` repeats the difference in the learning rate."""
    return _alike(_number(other.then), _number(difference.then)) and _alike(_number(other.now), _number(difference.now))


def _number(value: float | str | None) -> float | str | None:
    try:
        return float(value) if value is not None else None
    except ValueError:
        return value


def _shown(value: float | str | None) -> str:
    return "not set" if value is None else f"{value:g}" if isinstance(value, (int, float)) else value
