"""Read and restore each kind of object: modules, averages, optimizers, schedulers, gradient scalers.

Reading returns the tensors themselves and a copy of everything else, without waiting for a GPU. Restoring first checks
everything (`RestorePlan`), then copies into the existing tensors.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence, Set
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from holdfast.errors import CannotRestore, OptimizersMissing
from holdfast.state.host_copy import copy_in
from holdfast.state.parameters import (
    Optimizer,
    buffers_in,
    is_usable,
    local_tensor,
    parameters_in,
    parameters_of,
    plain_name,
    sharded_as,
)
from holdfast.state.values import Ref, Tree, flatten_plain, is_plain, unflatten

Keep = Callable[..., Ref]
_EXTRA = "_extra_state"  # as torch names it
_FROZEN_FACTOR = 2  # frozen parameters above this multiple of the rest are not copied (adapters on a large base)
_FROZEN_SMALL = 64 << 20  # bytes of frozen parameters that are always copied


def large_frozen(models: list[nn.Module], trained: list[torch.Tensor]) -> list[torch.Tensor]:
    """The frozen parameters, if they are far larger than the rest; else none."""
    parameters: dict[int, torch.Tensor] = {id(p): p for model in models for p in model.parameters()}
    trained_ids = {id(parameter) for parameter in trained}
    frozen = [p for p in parameters.values() if not p.requires_grad and id(p) not in trained_ids and is_usable(p)]
    if not frozen:
        return []
    size = sum(local_tensor(p).nbytes for p in frozen)
    rest = sum(local_tensor(p).nbytes for p in parameters.values() if is_usable(p)) - size
    return frozen if size > max(_FROZEN_SMALL, _FROZEN_FACTOR * rest) else []


def extra_state_modules(module: nn.Module) -> dict[str, nn.Module]:
    """The submodules with `get_extra_state`, by its name in the state dict."""
    return {
        plain_name(f"{prefix}.{_EXTRA}" if prefix else _EXTRA): part
        for prefix, part in module.named_modules()
        if type(part).get_extra_state is not nn.Module.get_extra_state
    }


def not_in_state_dict(module: nn.Module) -> set[str]:
    """Names of the buffers that are not in the model's `state_dict()`."""
    names = {
        plain_name(f"{prefix}.{name}" if prefix else name)
        for prefix, part in nn.Module.named_modules(module, remove_duplicate=False)
        for name in part._non_persistent_buffers_set
    }
    return {*names, "n_averaged"} if isinstance(module, AveragedModel) else names


# Reading


def read_module(module: nn.Module, keep: Keep, *, skip: Set[int] = frozenset(), is_average: bool = False) -> Tree:
    """Read parameters, buffers and extra state."""
    parameters = {
        name: keep(p, checked=p.requires_grad or is_average) for name, p in parameters_in(module).items() if id(p) not in skip
    }
    buffers = {  # a mask may be infinite on purpose; a running statistic may not
        name: keep(buffer, checked=name.rpartition(".")[2].startswith("running_")) for name, buffer in buffers_in(module).items()
    }
    others = not_in_state_dict(module)
    return {
        "parameters": parameters,
        "buffers": {name: ref for name, ref in buffers.items() if name not in others},
        "other_buffers": {name: ref for name, ref in buffers.items() if name in others},
        "extra_state": {name: read_state(part.get_extra_state(), keep) for name, part in extra_state_modules(module).items()},
    }


def read_average(average: Any, keep: Keep) -> Tree:
    """Read averaged weights: a module, or anything with `state_dict()`."""
    if isinstance(average, nn.Module):
        return read_module(average, keep, is_average=True)
    return {"state": read_state(average.state_dict(), keep)}


def read_optimizer(optimizer: Optimizer, keep: Keep) -> Tree:
    """Read the parameters, and state and groups as in `state_dict()`: with the parameters' numbers."""
    parameters: dict[int, Ref] = {}
    state: dict[int, Any] = {}
    for number, parameter in enumerate(parameters_of(optimizer)):
        if is_usable(parameter):
            parameters[number] = keep(parameter)
        if (values := optimizer.state.get(parameter)) is not None:
            state[number] = flatten_plain(dict(values), keep)
    groups, places = [], itertools.count()
    for group in optimizer.param_groups:
        settings = read_state({k: v for k, v in group.items() if k != "params"}, keep)
        groups.append({**settings, "params": [number for _, number in zip(group["params"], places, strict=False)]})
    return {"parameters": parameters, "state": state, "param_groups": groups}


def read_scaler(scaler: Any, keep: Keep) -> Tree:
    """Read a scaler's state dict, with scale and growth tracker as tensors: `state_dict()` would wait for the GPU."""
    if not hasattr(scaler, "_growth_tracker"):
        return {"state": read_state(scaler.state_dict(), keep)}
    scale, tracker = (None if value is None else keep(value, checked=False) for value in (scaler._scale, scaler._growth_tracker))
    state = {
        "scale": scaler._init_scale if scale is None else scale,
        "growth_factor": scaler._growth_factor,
        "backoff_factor": scaler._backoff_factor,
        "growth_interval": scaler._growth_interval,
        "_growth_tracker": scaler._init_growth_tracker if tracker is None else tracker,
    }
    return {"numbers": state}


def read_state(state: Any, keep: Keep) -> Any:
    """Copy the plain values of a state; its tensors need not be finite."""
    return flatten_plain(state, lambda tensor: keep(tensor, checked=False))


def read_gradients(optimizer: Optimizer) -> dict[int, torch.Tensor]:
    """The gradients of an optimizer's parameters, by index; not copied."""
    return {number: p.grad for number, p in enumerate(parameters_of(optimizer)) if p.grad is not None}


def set_gradients(optimizer: Optimizer, gradients: dict[int, torch.Tensor]) -> None:
    """Set the parameters' gradients; missing ones become None."""
    for number, parameter in enumerate(parameters_of(optimizer)):
        gradient = gradients.get(number)
        if gradient is not None:
            gradient = sharded_as(gradient.to(device=parameter.device, dtype=parameter.dtype), parameter)
        parameter.grad = gradient


def read_counters(holder: Any) -> Tree:
    """The numbers of an object that holds an average, by attribute: its update count sets the decay."""
    return {name: value for name, value in vars(holder).items() if type(value) in (int, float)}


# Restoring


class RestorePlan:
    """The steps to restore a state: checked while they are added, then applied."""

    def __init__(self, hosts: Sequence[torch.Tensor]) -> None:
        self._hosts = hosts
        self._copies: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self._calls: list[Callable[[], Any]] = []

    def apply(self) -> None:
        """Restore the state. On a GPU the copies are only started, in the training's own stream."""
        copy_in([host for host, _ in self._copies.values()], [target for _, target in self._copies.values()])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # schedulers warn to load the optimizer too
            for call in self._calls:
                call()
        self._calls.clear()  # they hold the training's objects, and this plan

    def add(self, what: str, saved: list[Any], live: list[Any], restore: Callable[[Any, Any], None]) -> None:
        """Pair saved states with live objects."""
        if len(saved) != len(live):
            error = OptimizersMissing if what == "optimizers" and len(saved) > len(live) else CannotRestore
            raise _changed(f"there were {len(saved)} {what} and there are {len(live)}", error)
        for state, obj in zip(saved, live, strict=True):
            restore(state, obj)

    def module(self, saved: Tree, module: nn.Module) -> None:
        """Restore parameters, buffers and extra state."""
        live, extra = {**parameters_in(module), **buffers_in(module)}, extra_state_modules(module)
        for kind in ("parameters", "buffers", "other_buffers", "extra_state"):
            for name, value in saved.get(kind, {}).items():
                if name in extra:
                    self._later(lambda part=extra[name], value=value: part.set_extra_state(self._values(value, None)))
                else:
                    self._into(live.get(name), value, name)

    def average(self, saved: Tree, average: Any) -> None:
        """Restore averaged weights."""
        if "parameters" in saved:
            self.module(saved, average)
        else:
            self._later(self._load, average, saved["state"])

    def counters(self, saved: Tree, holder: Any) -> None:
        """Restore the numbers beside an average."""
        self._later(vars(holder).update, saved)

    def scheduler(self, saved: Any, scheduler: Any) -> None:
        """Restore a scheduler through `load_state_dict`."""
        self._later(self._load, scheduler, saved)

    def scaler(self, saved: Tree, scaler: Any) -> None:
        """Restore a gradient scaler; a disabled one has an empty state."""
        if "numbers" in saved:
            self._later(scaler.load_state_dict, unflatten(saved["numbers"], lambda ref: self._hosts[ref.number].item()))
        elif saved["state"]:
            self._later(self._load, scaler, saved["state"])

    def optimizer(self, saved: Tree, optimizer: Optimizer) -> None:
        """Restore an optimizer's state and settings; the parameter lists stay the same objects."""
        groups = saved["param_groups"]
        if len(groups) != len(optimizer.param_groups):
            raise _changed(f"the optimizer had {len(groups)} parameter groups and has {len(optimizer.param_groups)}")
        for old, group in zip(groups, optimizer.param_groups, strict=True):
            if len(old["params"]) != len(group["params"]):
                raise _changed(f"a parameter group had {len(old['params'])} parameters and has {len(group['params'])}")
            for name, value in old.items():
                if isinstance(value, Ref) and isinstance(group.get(name), torch.Tensor):
                    self._into(group[name], value, name)
                elif name != "params":
                    self._later(group.__setitem__, name, self._values(value, group.get(name)))
            for number, parameter in zip(old["params"], group["params"], strict=True):
                if number in saved["parameters"]:
                    self._into(parameter, saved["parameters"][number], f"parameter {number} of the optimizer")
                self._parameter(saved["state"].get(number), optimizer, group, parameter)

    def _parameter(self, old: Tree | None, optimizer: Optimizer, group: Tree, parameter: torch.Tensor) -> None:
        """Restore the state of one parameter; state that did not exist yet is removed."""
        live = optimizer.state.get(parameter)
        if old is None:
            if live is not None:
                self._later(optimizer.state.pop, parameter, None)
            return
        if live is None:
            live = {}
            self._later(optimizer.state.__setitem__, parameter, live)
        for name, value in live.items():
            if name not in old and is_plain(value):  # other values were never copied, and stay
                self._later(live.pop, name, None)
        for name, value in old.items():
            current = live.get(name)
            if isinstance(value, Ref) and self._fits(current, value):
                self._into(current, value, name)
            elif isinstance(value, Ref):
                self._later(live.__setitem__, name, self._state_tensor(name, value, group, parameter))
            else:
                self._later(live.__setitem__, name, self._values(value, current, device=parameter.device))

    def _state_tensor(self, name: str, ref: Ref, group: Tree, parameter: torch.Tensor) -> torch.Tensor:
        """A new state tensor; the step count is on the host unless the kernel reads it."""
        host = self._hosts[ref.number]
        on_host = name == "step" and not (group.get("capturable") or group.get("fused"))
        return sharded_as(host.to("cpu" if on_host else parameter.device, copy=True), parameter)

    def _fits(self, live: Any, ref: Ref) -> bool:
        if not isinstance(live, torch.Tensor):
            return False
        local, host = local_tensor(live), self._hosts[ref.number]
        return local.shape == host.shape and local.dtype == host.dtype

    def _into(self, target: Any, ref: Ref, name: str) -> None:
        """Copy into an existing tensor."""
        host = self._hosts[ref.number]
        if not self._fits(target, ref):
            now = f"{tuple(target.shape)} {target.dtype}" if isinstance(target, torch.Tensor) else "missing"
            raise _changed(f"{name} was {tuple(host.shape)} {host.dtype} and is {now}")
        self._copies[ref.number, id(target)] = host, local_tensor(target)

    def _load(self, obj: Any, saved: Any) -> None:
        """Call `load_state_dict`; values that are not plain were never copied, and stay."""
        current = obj.state_dict()
        state = self._values(saved, current)
        if isinstance(state, dict) and isinstance(current, dict):
            state.update({name: value for name, value in current.items() if name not in state and not is_plain(value)})
        obj.load_state_dict(state)

    def _later(self, call: Callable[..., Any], *arguments: Any) -> None:
        self._calls.append(lambda: call(*arguments))

    def _values(self, tree: Any, like: Any, device: torch.device | None = None) -> Any:
        return unflatten(tree, lambda ref: self._hosts[ref.number].to(device or "cpu", copy=True), like)


def _changed(what: str, error: type[CannotRestore] = CannotRestore) -> CannotRestore:
    return error(f"The training has changed since this state was saved: {what}.", fix="resume from a newer snapshot")
