"""Settings of a training that were changed from outside: learning rate, weight decay, any other number of a parameter group, and
a limit on the gradient norm.

A change is put on around each update and taken off after it, so that schedulers and scripts that write the rate at every step
neither undo it nor are disturbed by it. `lr *= 0.1` is a factor on whatever the script wants. `lr = 1e-4` is the factor that
makes the rate that now: the schedule goes on from there in proportion. Any other setting with `=` is held at its value.
"""

from __future__ import annotations

import math
import re
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from holdfast.signals.actions import Refused

if TYPE_CHECKING:
    from holdfast.inside.members import Members

Optimizer = torch.optim.Optimizer
_TEXT = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\[\s*(\d+)\s*\])?\s*([*/]?=)\s*(\S.*?)\s*$")
_OFF = ("off", "none", "no")
_FORMS = "lr=1e-4, 'lr*=0.1', 'lr[1]=1e-5', weight_decay=0.01, clip=1.0 or clip=off"


@dataclass(frozen=True, slots=True)
class RequestedSetting:
    """A setting as someone typed it."""

    name: str
    group: int | None
    op: str
    value: float | None  # None: off

    @property
    def words(self) -> str:
        """As the journal tells it."""
        where = f"{self.name}[{self.group}]" if self.group is not None else self.name
        return f"{where} {self.op} {'off' if self.value is None else f'{self.value:g}'}"


def read_setting(text: str) -> RequestedSetting:
    """Read `lr=1e-4`, `lr*=0.1`, `weight_decay[0]=0.01`, `clip=off`. Raises Refused, in words."""
    found = _TEXT.match(text)
    if found is None:
        raise Refused(f"{text!r} is no setting; write it as {_FORMS}")
    name, group, op, given = found.groups()
    if given.lower() in _OFF:
        if name != "clip":
            raise Refused(f"{name} cannot be switched off; undo the change that set it")
        return RequestedSetting(name, None, op, None)
    try:
        value = float(given)
    except ValueError:
        raise Refused(f"{given!r} is no number; write it as {_FORMS}") from None
    if not math.isfinite(value) or value < 0 or (op != "=" and value == 0) or (name == "clip" and value == 0):
        raise Refused(f"{name} cannot be {op} {given}")
    if name == "clip" and (op != "=" or group is not None):
        raise Refused("clip is one limit for all gradients together: clip=1.0, or clip=off")
    return RequestedSetting(name, int(group) if group is not None else None, op, 1.0 / value if op == "/=" else value)


@dataclass(frozen=True, slots=True, eq=False)
class _Setting:
    """One change to one group, as it is put on: times a factor, or a value that is held."""

    name: str
    value: float
    factor: bool
    optimizer: weakref.ref[Optimizer]
    group: int
    exactly: tuple[float, float] | None = None  # from this value to that one, without rounding

    def fits(self, name: str, optimizer: Optimizer, group: int) -> bool:
        return self.name == name and self.optimizer() is optimizer and self.group == group

    def on(self, value: Any) -> Any:
        """What becomes of a value."""
        if self.exactly is not None and not isinstance(value, torch.Tensor) and value == self.exactly[0]:
            return self.exactly[1]
        return value * self.value if self.factor else self.value


@dataclass(frozen=True, slots=True, eq=False)
class _Limit:
    """A limit on the gradient norm that someone has set; None: switched off."""

    norm: float | None


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """What a change has done: from what to what, and what to put on or off to undo it."""

    what: str
    was: Any
    now: Any
    settings: tuple[_Setting, ...] = ()
    limit: _Limit | None = None
    note: str | None = None


class Settings:
    """The changes of one training that are in force."""

    def __init__(self, training: Members) -> None:
        self._training = training
        self._active: list[_Setting] = []
        self._names: tuple[str, ...] = ()
        self.limit: float | None = None  # on the gradient norm: the newest of those that were set
        self._limits: list[_Limit] = []
        self._put_on: list[tuple[dict[str, Any], str, Any, Any]] = []

    # Around an update

    def put_on(self, optimizer: Optimizer, *, keep: bool = False) -> None:
        """Let an optimizer see the settings that are in force; with `keep`, beside another one that sees them already."""
        if not keep:
            self.take_off()  # a step that raised has left them on
        for number, group in enumerate(optimizer.param_groups) if self._names else ():
            for name in self._names:
                raw = group.get(name)
                if raw is not None and any(one.fits(name, optimizer, number) for one in self._active):
                    self._put_on_group(group, name, raw, self._in_force(raw, name, optimizer, number))

    def _put_on_group(self, group: dict[str, Any], name: str, raw: Any, value: Any) -> None:
        if isinstance(raw, torch.Tensor):
            self._put_on.append((group, name, raw.clone(), value))
            raw.copy_(value) if isinstance(value, torch.Tensor) else raw.fill_(value)
        else:
            self._put_on.append((group, name, raw, value))
            group[name] = value

    def take_off(self) -> None:
        """Let the script find what it has set; what was written meanwhile is taken for what someone wants to be in force."""
        while self._put_on:
            group, name, raw, value = self._put_on.pop()
            found = group.get(name)
            if isinstance(raw, torch.Tensor):
                if isinstance(found, torch.Tensor):
                    found.copy_(raw)
            elif found == value or not value or not isinstance(found, (int, float)):
                group[name] = raw
            else:
                group[name] = found * (raw / value)

    def clip(self, optimizer: Optimizer, clipped_at: float | None) -> float | None:
        """Keep the norm of an optimizer's gradients under the limit; the limit that they are under now."""
        limit = self.limit
        if limit is None:
            return clipped_at
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        scale = getattr(optimizer, "grad_scale", None)  # gradients that a fused optimizer unscales itself
        original: Any = torch.nn.utils.clip_grad_norm_
        getattr(original, "__wrapped__", original)(parameters, limit if scale is None else limit * scale)
        return limit if clipped_at is None else min(limit, clipped_at)

    # Changes

    def change(self, wanted: RequestedSetting) -> AppliedChange:
        """Make a change. Raises Refused, in words."""
        if wanted.name == "clip":
            return self._change_limit(wanted)
        groups = self._groups(wanted)
        was = [self._now(wanted.name, *group) for group in groups]
        settings = tuple(self._setting(wanted, group, before) for group, before in zip(groups, was, strict=True))
        self._use([*self._active, *settings])
        now = [self._now(wanted.name, *group) for group in groups]
        return AppliedChange(wanted.words, _one(was), _one(now), settings, note=_note(wanted, settings))

    def undo(self, made: AppliedChange) -> AppliedChange:
        """Take a change back; others that were made since stay. What is given can be undone in its turn."""
        if made.limit is not None:
            before, known = self.limit, made.limit in self._limits
            rest = [one for one in self._limits if one is not made.limit]
            self._use_limits(rest if known else [*rest, made.limit])
            return AppliedChange("clip", before, self.limit, limit=made.limit)
        name = made.settings[0].name
        groups = self._groups(RequestedSetting(name, None, "=", 0.0))
        was = [self._now(name, *group) for group in groups]
        gone = {id(one) for one in made.settings}
        held = {id(one) for one in self._active}
        again = [one for one in made.settings if id(one) not in held]  # it was undone before: put it on again
        self._use([*(one for one in self._active if id(one) not in gone), *again])
        return AppliedChange(name, _one(was), _one([self._now(name, *group) for group in groups]), made.settings)

    def _change_limit(self, wanted: RequestedSetting) -> AppliedChange:
        optimizers = [one for member in self._training.members.values() if (one := member.optimizer()) is not None]
        if any(hasattr(p, "_fsdp_flattened") for o in optimizers for group in o.param_groups for p in group["params"]):
            raise Refused("with FullyShardedDataParallel only the script can clip: model.clip_grad_norm_(max_norm)")
        before, limit = self.limit, _Limit(wanted.value)
        self._use_limits([*self._limits, limit])
        return AppliedChange(wanted.words, before, self.limit, limit=limit)

    def _use_limits(self, limits: list[_Limit]) -> None:
        self._limits = limits
        self.limit = limits[-1].norm if limits else None

    def _groups(self, wanted: RequestedSetting) -> list[tuple[Optimizer, int]]:
        """The parameter groups that are meant: counted through all optimizers, those of the main one first."""
        members = sorted(self._training.members.values(), key=lambda member: member is not self._training.main)
        optimizers = [one for member in members if (one := member.optimizer()) is not None]
        every = [(optimizer, number) for optimizer in optimizers for number in range(len(optimizer.param_groups))]
        if wanted.group is not None and wanted.group >= len(every):
            raise Refused(f"there is no group {wanted.group}: there are {len(every)}, counted from 0")
        chosen = every if wanted.group is None else [every[wanted.group]]
        fitting = [(o, n) for o, n in chosen if _is_number(o.param_groups[n].get(wanted.name))]
        if not fitting:
            known = dict.fromkeys(name for o, n in every for name in o.defaults if _is_number(o.param_groups[n].get(name)))
            raise Refused(f"the optimizer has no setting {wanted.name}; it has {', '.join((*known, 'clip'))}")
        return fitting

    def _setting(self, wanted: RequestedSetting, group: tuple[Optimizer, int], before: float) -> _Setting:
        assert wanted.value is not None
        where = weakref.ref(group[0]), group[1]
        if wanted.op != "=":
            return _Setting(wanted.name, wanted.value, True, *where)
        if wanted.name == "lr" and before > 0 and wanted.value > 0:
            return _Setting(wanted.name, wanted.value / before, True, *where, exactly=(before, wanted.value))
        return _Setting(wanted.name, wanted.value, False, *where)

    def _use(self, active: list[_Setting]) -> None:
        self.take_off()
        self._active, self._names = active, tuple(dict.fromkeys(one.name for one in active))

    def _in_force(self, raw: Any, name: str, optimizer: Optimizer, number: int) -> Any:
        for one in self._active:
            if one.fits(name, optimizer, number):
                raw = one.on(raw)
        return raw

    def _now(self, name: str, optimizer: Optimizer, number: int) -> float:
        group = optimizer.param_groups[number]
        raw = next((held[2] for held in self._put_on if held[0] is group and held[1] == name), group[name])
        return float(self._in_force(raw, name, optimizer, number))


def _note(wanted: RequestedSetting, settings: tuple[_Setting, ...]) -> str:
    """What a schedule of the script does with it."""
    if wanted.op != "=":
        return "a factor on whatever the script sets"
    if wanted.name != "lr":
        return "held there, whatever the script sets"
    held = any(not one.factor for one in settings)
    return "held there: a rate of 0 has no proportion" if held else "a schedule goes on from there in proportion"


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _one(values: list[float]) -> Any:
    """One number where all are the same."""
    return values[0] if len(set(values)) == 1 else values
