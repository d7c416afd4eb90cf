"""Put a training's state back into the tensors and objects that are there: first all of it is looked at, then it is done."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from holdfast.errors import CannotRestore
from holdfast.inside.snapshots.host_copy import copy_in
from holdfast.inside.snapshots.plain import Ref, is_plain, put_together
from holdfast.inside.snapshots.reading import (
    Counters,
    Optimizer,
    Tree,
    buffers_in,
    holders_of_extra_state,
    own_numbers,
    parameters_in,
)


class Plan:
    """What has to be done to restore a state."""

    def __init__(self, hosts: Sequence[torch.Tensor]) -> None:
        self._hosts = hosts
        self._pairs: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self._afterwards: list[Callable[[], Any]] = []

    def carry_out(self) -> None:
        """Do it. On a GPU the copies are only started, in the training's own stream."""
        copy_in([host for host, _ in self._pairs.values()], [target for _, target in self._pairs.values()])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # schedulers warn on loading that the optimizer should be loaded too
            for job in self._afterwards:
                job()

    def all_of(self, what: str, saved: list[Any], live: list[Any], put: Callable[[Any, Any], None]) -> None:
        """Pair what was there with what is there."""
        if len(saved) != len(live):
            raise _changed(f"there were {len(saved)} {what} and there are {len(live)}")
        for old, thing in zip(saved, live, strict=True):
            put(old, thing)

    def module(self, saved: Tree, module: nn.Module) -> None:
        """Parameters and buffers."""
        live, extra = {**parameters_in(module), **buffers_in(module)}, holders_of_extra_state(module)
        for kind in ("parameters", "buffers", "other_buffers", "extra_state"):
            for name, value in saved.get(kind, {}).items():
                if name in extra:
                    self._later(lambda part=extra[name], value=value: part.set_extra_state(self._values(value, None)))
                else:
                    self._into(live.get(name), value, name)

    def average(self, saved: Tree, average: Any) -> None:
        """An averaged copy of the weights."""
        if "parameters" in saved:
            self.module(saved, average)
        else:
            self._later(lambda: self._load(average, saved["state"]))

    def counters(self, saved: Tree, counters: Counters) -> None:
        """The numbers beside an average."""
        self._later(lambda: counters.put_back(saved))

    def scheduler(self, saved: Any, scheduler: Any) -> None:
        """A scheduler, through its own `load_state_dict`."""
        self._later(lambda: self._load(scheduler, saved))

    def scaler(self, saved: Tree, scaler: Any) -> None:
        """A gradient scaler; one that had not begun when the state was read, begins anew."""
        if "state" in saved:
            if saved["state"]:  # that of one that is switched off is empty
                self._later(lambda: self._load(scaler, saved["state"]))
            return
        for name, start in (("_scale", "_init_scale"), ("_growth_tracker", "_init_growth_tracker")):
            live, value = getattr(scaler, name), saved[name]
            if live is not None and isinstance(value, Ref):
                self._into(live, value, name)
            elif live is not None:
                self._later(live.fill_, getattr(scaler, start))
            elif isinstance(value, Ref):  # it begins with its first use, from these numbers
                self._later(setattr, scaler, start, self._hosts[value.number].item())

    def optimizer(self, saved: Tree, optimizer: Optimizer) -> None:
        """An optimizer's state and settings; the lists of parameters stay the objects that they are."""
        if len(saved["groups"]) != len(optimizer.param_groups):
            raise _changed(f"the optimizer had {len(saved['groups'])} parameter groups and has {len(optimizer.param_groups)}")
        number = 0
        for old, group in zip(saved["groups"], optimizer.param_groups, strict=True):
            if old["count"] != len(group["params"]):
                raise _changed(f"a parameter group had {old['count']} parameters and has {len(group['params'])}")
            self._settings(old["settings"], group)
            for parameter in group["params"]:
                if number in saved["parameters"]:
                    self._into(parameter, saved["parameters"][number], f"parameter {number} of the optimizer")
                self._parameter(saved["state"].get(number), optimizer, group, parameter)
                number += 1

    def _settings(self, old: Tree, group: Tree) -> None:
        for name, value in old.items():
            if isinstance(value, Ref) and isinstance(group.get(name), torch.Tensor):
                self._into(group[name], value, name)
            else:
                self._later(group.__setitem__, name, self._values(value, group.get(name)))

    def _parameter(self, old: Tree | None, optimizer: Optimizer, group: Tree, parameter: torch.Tensor) -> None:
        """Put one parameter's state back; a state that was not there yet is taken away, as the optimizer makes it itself."""
        live = optimizer.state.get(parameter)
        if old is None:
            if live is not None:
                self._later(optimizer.state.pop, parameter, None)
            return
        if live is None:
            live = {}
            self._later(optimizer.state.__setitem__, parameter, live)
        for name, value in live.items():
            if name not in old and is_plain(value):  # what is not plain was never copied, and stays
                self._later(live.pop, name, None)
        for name, value in old.items():
            found = live.get(name)
            if isinstance(value, Ref) and self._fits(found, value):
                self._into(found, value, name)
            elif isinstance(value, Ref):
                self._later(live.__setitem__, name, self._state_tensor(name, value, group, parameter))
            else:
                self._later(live.__setitem__, name, self._values(value, found, device=parameter.device))

    def _state_tensor(self, name: str, ref: Ref, group: Tree, parameter: torch.Tensor) -> torch.Tensor:
        """A new tensor for an optimizer that has none: a step count lies on the host unless the kernel reads it."""
        host = self._hosts[ref.number]
        on_host = name == "step" and not (group.get("capturable") or group.get("fused"))
        fresh = host.to("cpu" if on_host else parameter.device, copy=True)
        local = getattr(parameter, "_local_tensor", None)
        if local is None or host.shape != local.shape or host.dim() == 0:
            return fresh
        from torch.distributed.tensor import DTensor

        mesh, placements = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
        return DTensor.from_local(fresh, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride())

    def _fits(self, live: Any, ref: Ref) -> bool:
        if not isinstance(live, torch.Tensor):
            return False
        own, host = own_numbers(live), self._hosts[ref.number]
        return own.shape == host.shape and own.dtype == host.dtype

    def _into(self, target: Any, ref: Ref, name: str) -> None:
        """Put a tensor back into the one that is there."""
        host = self._hosts[ref.number]
        if not self._fits(target, ref):
            now = f"{tuple(target.shape)} {target.dtype}" if isinstance(target, torch.Tensor) else "gone"
            raise _changed(f"{name} was {tuple(host.shape)} {host.dtype} and is {now}")
        self._pairs[ref.number, id(target)] = host, own_numbers(target)

    def _load(self, thing: Any, saved: Any) -> None:
        """Through its own `load_state_dict`; what is not plain was never kept, and stays as it is."""
        now = thing.state_dict()
        state = self._values(saved, now)
        if isinstance(state, dict) and isinstance(now, dict):
            state.update({name: value for name, value in now.items() if name not in state and not is_plain(value)})
        thing.load_state_dict(state)

    def _later(self, job: Callable[..., Any], *arguments: Any) -> None:
        self._afterwards.append(lambda: job(*arguments))

    def _values(self, tree: Any, like: Any, device: torch.device | None = None) -> Any:
        return put_together(tree, lambda ref: self._hosts[ref.number].to(device or "cpu", copy=True), like)


def _changed(what: str) -> CannotRestore:
    return CannotRestore(f"The training has changed since this state was kept: {what}.", fix="go on from a newer snapshot")
