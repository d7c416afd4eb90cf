"""Settings that are changed in a live training: learning rate, weight decay, any number of a parameter group, clipping.

The user changes them, and repairs lower the learning rate. A change is applied around each update and reverted after it, so that
schedulers and scripts that write the LR at every step neither undo it nor see it. `lr *= 0.1` is a factor on the script's value.
`lr = 1e-4` becomes the factor that gives 1e-4 now: the schedule continues in proportion. Any other setting with `=` is held.
"""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from holdfast.signals.actions import Refused
from holdfast.state.parameters import parameters_of

Optimizer = torch.optim.Optimizer
_SYNTAX = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\[\s*(\d+)\s*\])?\s*([*/]?=)\s*(\S.*?)\s*$")
_RISES = 1.5  # times the limit: an LR up to this is rising and raises the limit; a higher one has jumped
_FALLS = 3.0  # times at once: so the jump itself is undone; a schedule goes down more slowly
_LIFTED_AFTER = 50  # updates without a jump; a schedule that jumps on purpose later is left alone
_OFF = ("off", "none", "no")
_EXAMPLES = "lr=1e-4, 'lr*=0.1', 'lr[1]=1e-5', weight_decay=0.01, clip=1.0 or clip=off"


@dataclass(frozen=True, slots=True)
class RequestedSetting:
    """A setting as the user typed it; the value None means off."""

    name: str
    group: int | None
    op: str
    value: float | None

    def __str__(self) -> str:
        name = f"{self.name}[{self.group}]" if self.group is not None else self.name
        return f"{name} {self.op} {'off' if self.value is None else f'{self.value:g}'}"


def read_setting(text: str) -> RequestedSetting:
    """Parse `lr=1e-4`, `lr*=0.1`, `weight_decay[0]=0.01`, `clip=off`. Raises Refused."""
    match = _SYNTAX.match(text)
    if match is None:
        raise Refused(f"{text!r} is not a setting; write it as {_EXAMPLES}")
    name, group, op, number = match.groups()
    if number.lower() in _OFF:
        if name != "clip":
            raise Refused(f"{name} cannot be switched off; undo the change that set it")
        return RequestedSetting(name, None, op, None)
    try:
        value = float(number)
    except ValueError:
        raise Refused(f"{number!r} is not a number; write it as {_EXAMPLES}") from None
    if not math.isfinite(value) or value < 0 or (op != "=" and value == 0) or (name == "clip" and value == 0):
        raise Refused(f"{name} cannot be {op} {number}")
    if name == "clip" and (op != "=" or group is not None):
        raise Refused("clip is one limit for all gradients together: clip=1.0, or clip=off")
    return RequestedSetting(name, int(group) if group is not None else None, op, 1.0 / value if op == "/=" else value)


@dataclass(frozen=True, slots=True, eq=False)
class _GroupChange:
    """A change to one parameter group: a factor, or a value that is held."""

    optimizer: weakref.ref[Optimizer]
    group: int
    value: float
    is_factor: bool = True
    exact: tuple[float, float] | None = None  # this value becomes that one, without rounding

    def __call__(self, value: Any) -> Any:
        if self.exact is not None and not isinstance(value, torch.Tensor) and value == self.exact[0]:
            return self.exact[1]
        return value * self.value if self.is_factor else self.value


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """A change to a setting, or to `clip`, which is one limit for all groups; None switches clipping off."""

    name: str
    groups: tuple[_GroupChange, ...] = ()
    max_norm: float | None = None


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """A change that was made: the values before and after, and what an undo toggles."""

    what: str
    before: Any
    after: Any
    change: _Change
    note: str | None = None


class LearningRateFactor:
    """The LR factor of one training, its warm-up after a rollback, and the limit against LR jumps.

    A temporary factor rises back to one.
    """

    def __init__(self) -> None:
        self._permanent, self._temporary = 1.0, 1.0
        self._since, self._warmup_steps, self._regain_steps = 0, 0, 0
        self._limits: weakref.WeakKeyDictionary[Optimizer, list[_Limit]] = weakref.WeakKeyDictionary()
        self._steps_without_jump = 0

    def lower(self, factor: float, step: int, *, warmup_steps: int = 0, regain_steps: int = 0) -> None:
        """Multiply the LR by a factor from this step on, after a linear warm-up.

        With `regain_steps` the factor holds for that many steps, then rises back to one over as many.
        """
        self._permanent *= self._temporary_at(step) * (1.0 if regain_steps else factor)
        self._temporary = factor if regain_steps else 1.0
        self._since, self._warmup_steps, self._regain_steps = step, warmup_steps, regain_steps

    def limit(self, optimizers: Iterable[Optimizer], max_lr: float, *, has_jumped: bool = False) -> None:
        """Keep all LRs from jumping: the first to `max_lr`, or to its current value if that is higher; others in proportion.

        `has_jumped`: the current values may be those after the jump, so `max_lr` holds in any case.
        """
        ratio, self._steps_without_jump = None, 0
        for optimizer in optimizers:
            rates = [group["lr"] for group in optimizer.param_groups if group.get("lr") is not None]
            if ratio is None:
                first = float(rates[0]) if rates else 0.0
                ratio = max_lr / first if first > 0.0 else 1.0
                ratio = ratio if has_jumped else max(1.0, ratio)
            self._limits[optimizer] = [_Limit(lr * ratio) for lr in rates]

    @property
    def factor(self) -> float:
        """The full factor, without warm-up or regained part."""
        return self._permanent * self._temporary

    def at(self, step: int) -> float:
        """The factor for the update of a step."""
        factor, steps = self._permanent * self._temporary_at(step), step - self._since + 1
        return factor if steps >= self._warmup_steps else factor * steps / self._warmup_steps

    def _temporary_at(self, step: int) -> float:
        """Rises geometrically, so that no update is much larger than the one before."""
        if self._temporary == 1.0:
            return 1.0
        regained = (step - self._since - self._regain_steps) / self._regain_steps
        return float(self._temporary ** (1.0 - min(1.0, max(0.0, regained))))

    def lowered(self, optimizer: Optimizer, rates: list[Any], step: int) -> list[Any] | None:
        """The LRs of an optimizer's groups for the update of a step; None where they stay."""
        factor, limits = self.at(step), self._limits.get(optimizer) if self._limits else None
        if factor == 1.0 and limits is None:
            return None
        limited = rates
        if limits is not None:  # a group may be added later
            limited = [limits[index].applied(lr) if index < len(limits) else lr for index, lr in enumerate(rates)]
        jumped = any(new is not lr for new, lr in zip(limited, rates, strict=True))
        self._steps_without_jump = 0 if jumped else self._steps_without_jump + 1
        if self._limits and self._steps_without_jump >= _LIFTED_AFTER:
            self._limits.clear()
        return [lr * factor for lr in limited]


@dataclass(slots=True)
class _Limit:
    """The LR that one group may have. One that has jumped above it is scaled down to it, so a schedule still has its shape."""

    value: Any
    peak: float = 0.0  # the highest LR since it jumped; 0 if it has not
    last: float = 0.0

    def applied(self, lr: Any) -> Any:
        """The LR to use. One in a tensor stays on its device."""
        if isinstance(lr, torch.Tensor):
            limit = torch.as_tensor(self.value).to(lr)
            self.value = torch.where(lr <= _RISES * limit, torch.maximum(lr, limit), limit)
            return torch.minimum(lr, self.value)
        if lr <= _RISES * self.value and (not self.peak or lr * _FALLS < self.last):  # it did not jump, or came down at once
            self.peak, self.value = 0.0, max(self.value, lr)
            return lr
        self.peak, self.last = max(self.peak, lr), lr
        return self.value * lr / self.peak


class ChangedTraining(Protocol):
    """The training whose settings are changed."""

    step: int
    settings: Settings | None

    def optimizers(self) -> list[Optimizer]:
        """Its optimizers, the main one first."""


def settings_of(training: ChangedTraining) -> Settings:
    """The changes to a training; a step of one that nobody has changed costs nothing."""
    if training.settings is None:
        training.settings = Settings(training)
    return training.settings


class Settings:
    """The changes to one training: the user's, and `lr`, the factor of repairs."""

    def __init__(self, training: ChangedTraining) -> None:
        self._training, self.lr = training, LearningRateFactor()
        self.first_lr_limit: float | None = None  # set at the first update, when all optimizers are known
        self._changes: list[_Change] = []  # in the order of their application
        self._overrides: list[tuple[dict[str, Any], str, Any, Any]] = []  # group, name, the script's value, ours

    # Around an update

    def apply(self, optimizer: Optimizer, *, keep: bool = False) -> None:
        """Apply the changes to an optimizer; `keep` leaves them applied to others as well."""
        if not keep:
            self.revert()  # a step that raised has left them applied
        if self.first_lr_limit is not None:
            self.lr.limit(self._training.optimizers(), self.first_lr_limit, has_jumped=True)
            self.first_lr_limit = None
        for index, group in enumerate(optimizer.param_groups) if self._changes else ():
            for name in dict.fromkeys(change.name for change in self._changes):
                own = group.get(name)
                if own is not None and (value := self._changed(own, name, optimizer, index)) is not own:
                    self._override(group, name, value)
        groups = [group for group in optimizer.param_groups if group.get("lr") is not None]
        lowered = self.lr.lowered(optimizer, [group["lr"] for group in groups], self._training.step)
        for group, lr in zip(groups, lowered or (), strict=False):
            self._override(group, "lr", lr)

    def _override(self, group: dict[str, Any], name: str, value: Any) -> None:
        """Replace a value; one in a tensor is written in place, as captured graphs hold the tensor."""
        own = group[name]
        if isinstance(own, torch.Tensor):
            self._overrides.append((group, name, own.clone(), value))
            own.copy_(value) if isinstance(value, torch.Tensor) else own.fill_(value)
        else:
            self._overrides.append((group, name, own, value))
            group[name] = value

    def revert(self) -> None:
        """Restore the script's own values; one that was written meanwhile is what its writer wants in force."""
        while self._overrides:
            group, name, own, value = self._overrides.pop()
            current = group.get(name)
            if isinstance(own, torch.Tensor):
                if isinstance(current, torch.Tensor):
                    current.copy_(own)
            elif current == value or not value or not isinstance(current, (int, float)):
                group[name] = own
            else:
                group[name] = current * (own / value)

    @property
    def max_norm(self) -> float | None:
        """The limit on the gradient norm that was set last."""
        return next((change.max_norm for change in reversed(self._changes) if change.name == "clip"), None)

    def clip(self, optimizer: Optimizer, clipped_at: float | None) -> float | None:
        """Clip the optimizer's gradients; returns the limit that they are under now."""
        max_norm = self.max_norm
        if max_norm is None:
            return clipped_at
        parameters = [p for p in parameters_of(optimizer) if p.grad is not None]
        scale = getattr(optimizer, "grad_scale", None)  # a fused optimizer unscales gradients itself
        clip: Any = torch.nn.utils.clip_grad_norm_
        getattr(clip, "__wrapped__", clip)(parameters, max_norm if scale is None else max_norm * scale)
        return max_norm if clipped_at is None else min(max_norm, clipped_at)

    # Changes

    def change(self, setting: RequestedSetting) -> AppliedChange:
        """Make a change. Raises Refused."""
        groups = self._groups(setting)
        changes = tuple(_group_change(setting, group, self._value(setting.name, *group)) for group in groups)
        change = _Change(setting.name, changes, setting.value)
        return self._toggle(change, groups, str(setting), _note(setting, changes))

    def undo(self, applied: AppliedChange) -> AppliedChange:
        """Undo a change, or redo one that was undone; changes made since stay."""
        name = applied.change.name
        return self._toggle(applied.change, self._groups(RequestedSetting(name, None, "=", 0.0)), name)

    def _toggle(self, change: _Change, groups: list[tuple[Optimizer, int]], what: str, note: str | None = None) -> AppliedChange:
        before = self._values(change.name, groups)
        self.revert()
        others = [other for other in self._changes if other is not change]
        self._changes = others if change in self._changes else [*others, change]
        return AppliedChange(what, before, self._values(change.name, groups), change, note)

    def _groups(self, setting: RequestedSetting) -> list[tuple[Optimizer, int]]:
        """The parameter groups to change, counted through all optimizers, the main one first."""
        optimizers = self._training.optimizers()
        if setting.name == "clip":
            if any(hasattr(p, "_fsdp_flattened") for optimizer in optimizers for p in parameters_of(optimizer)):
                raise Refused("with FullyShardedDataParallel only the script can clip: model.clip_grad_norm_(max_norm)")
            return []
        groups = [(optimizer, index) for optimizer in optimizers for index in range(len(optimizer.param_groups))]
        if setting.group is not None and setting.group >= len(groups):
            raise Refused(f"there is no group {setting.group}: there are {len(groups)}, counted from 0")
        chosen = groups if setting.group is None else [groups[setting.group]]
        matching = [(o, i) for o, i in chosen if _is_number(o.param_groups[i].get(setting.name))]
        if not matching:
            names = dict.fromkeys(name for o, i in groups for name in o.defaults if _is_number(o.param_groups[i].get(name)))
            raise Refused(f"the optimizer has no setting {setting.name}; it has {', '.join((*names, 'clip'))}")
        return matching

    def _changed(self, value: Any, name: str, optimizer: Optimizer, index: int) -> Any:
        for change in self._changes:
            for group in change.groups if change.name == name else ():
                if group.optimizer() is optimizer and group.group == index:
                    value = group(value)
        return value

    def _values(self, name: str, groups: list[tuple[Optimizer, int]]) -> Any:
        """The values in force; a single number if all are equal."""
        values = [self._value(name, *group) for group in groups] if name != "clip" else [self.max_norm]
        return values[0] if len(set(values)) == 1 else values

    def _value(self, name: str, optimizer: Optimizer, index: int) -> float:
        group = optimizer.param_groups[index]
        own = next((own for held, key, own, _ in self._overrides if held is group and key == name), group[name])
        return float(self._changed(own, name, optimizer, index))


def _group_change(setting: RequestedSetting, group: tuple[Optimizer, int], before: float) -> _GroupChange:
    assert setting.value is not None
    optimizer, index = weakref.ref(group[0]), group[1]
    if setting.op == "=" and setting.name == "lr" and before > 0 and setting.value > 0:
        return _GroupChange(optimizer, index, setting.value / before, exact=(before, setting.value))
    return _GroupChange(optimizer, index, setting.value, is_factor=setting.op != "=")


def _note(setting: RequestedSetting, changes: tuple[_GroupChange, ...]) -> str | None:
    """How the change combines with the script's schedule."""
    if setting.name == "clip":
        return None
    if setting.op != "=":
        return "a factor on whatever the script sets"
    if setting.name != "lr":
        return "held at this value, whatever the script sets"
    held = any(not change.is_factor for change in changes)
    return "held at this value: an LR of 0 cannot be scaled" if held else "the schedule continues from there in proportion"


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return isinstance(value, (int, float)) and not isinstance(value, bool)
