"""Read the parts of a training's state: the tensors that are there, and a copy of everything else. No value of a GPU is read."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.optim.swa_utils import AveragedModel

from holdfast.inside.discovery import plain_name
from holdfast.inside.snapshots.plain import LeftOut, Ref, take_apart

Optimizer = torch.optim.Optimizer
Tree = dict[str, Any]
Keep = Callable[..., Ref]
_EXTRA = "_extra_state"  # as torch names it
_FROZEN_AT_MOST = 2  # times the size of what is trained: a large frozen base under small adapters is not copied
_FROZEN_SMALL = 64 << 20  # bytes of frozen parameters that are always copied


def own_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's numbers, in place: this rank's part of a sharded one."""
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local.detach()


def parameters_in(module: nn.Module) -> dict[str, torch.Tensor]:
    """All parameters by the names that the model gives them; one that is shared stands under each of its names."""
    return {plain_name(name): p for name, p in module.named_parameters(remove_duplicate=False) if is_usable(p)}


def buffers_in(module: nn.Module) -> dict[str, torch.Tensor]:
    """All buffers by name, also those that a `state_dict()` leaves out."""
    return {plain_name(name): b for name, b in module.named_buffers(remove_duplicate=False) if is_usable(b)}


def is_usable(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds numbers that can be copied; one of a lazy layer has none yet."""
    if type(tensor) in (UninitializedParameter, UninitializedBuffer):
        return False
    return tensor.layout is torch.strided and tensor.device.type != "meta"


def frozen_to_leave_out(models: list[nn.Module], trained: list[torch.Tensor]) -> list[torch.Tensor]:
    """Frozen parameters, if they are far larger than what is trained (adapters on a large base)."""
    everything: dict[int, torch.Tensor] = {id(p): p for model in models for p in model.parameters()}
    ours = {id(parameter) for parameter in trained}
    frozen = [p for p in everything.values() if not p.requires_grad and id(p) not in ours and is_usable(p)]
    if not frozen:
        return []
    size = sum(own_numbers(p).nbytes for p in frozen)
    rest = sum(own_numbers(p).nbytes for p in everything.values() if is_usable(p)) - size
    return frozen if size > max(_FROZEN_SMALL, _FROZEN_AT_MOST * rest) else []


def read_module(module: nn.Module, keep: Keep, *, left_out: set[int], steady: bool = True) -> Tree:
    """Parameters and buffers; those of a model are changed by updates and by forward passes, those of an average by neither."""
    parameters = {
        name: keep(p, steady=steady, checked=p.requires_grad or not steady)
        for name, p in parameters_in(module).items()
        if id(p) not in left_out
    }
    buffers = {  # a mask may be infinite on purpose; a running statistic may not
        name: keep(buffer, steady=False, checked=name.rpartition(".")[2].startswith("running_"))
        for name, buffer in buffers_in(module).items()
    }
    apart = not_in_state_dict(module)
    return {
        "parameters": parameters,
        "buffers": {name: ref for name, ref in buffers.items() if name not in apart},
        "other_buffers": {name: ref for name, ref in buffers.items() if name in apart},
        "extra_state": {
            name: read_plain(part.get_extra_state(), changing(keep)) for name, part in holders_of_extra_state(module).items()
        },
    }


def holders_of_extra_state(module: nn.Module) -> dict[str, nn.Module]:
    """The parts of a model that keep a state of their own kind, by the name that it has in the state dict."""
    usual = nn.Module.get_extra_state
    return {
        plain_name(f"{prefix}.{_EXTRA}" if prefix else _EXTRA): part
        for prefix, part in module.named_modules()
        if type(part).get_extra_state is not usual
    }


def not_in_state_dict(module: nn.Module) -> set[str]:
    """Names of the buffers that a `state_dict()` leaves out, or that are not of the model but of the average around it."""
    found = {
        plain_name(f"{prefix}.{name}" if prefix else name)
        for prefix, part in module.named_modules(remove_duplicate=False)
        for name in part._non_persistent_buffers_set
    }
    return {*found, "n_averaged"} if isinstance(module, AveragedModel) else found


def read_average(average: Any, keep: Keep) -> Tree:
    """An averaged copy of the weights: a module, or anything that has a state."""
    if isinstance(average, nn.Module):
        return read_module(average, keep, left_out=set(), steady=False)
    return {"state": read_plain(average.state_dict(), changing(keep))}


def read_optimizer(optimizer: Optimizer, keep: Keep) -> Tree:
    """Parameters, their state and the groups' settings; parameters are numbered through the groups."""
    parameters: dict[int, Ref] = {}
    state: dict[int, Any] = {}
    groups = []
    number = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if is_usable(parameter):
                parameters[number] = keep(parameter)
            found = optimizer.state.get(parameter)
            if found is not None:
                state[number] = read_plain(dict(found), keep)
            number += 1
        settings = {name: value for name, value in group.items() if name != "params"}
        groups.append({"count": len(group["params"]), "settings": read_plain(settings, changing(keep))})
    return {"parameters": parameters, "state": state, "groups": groups}


def read_scaler(scaler: Any, keep: Keep) -> Tree:
    """Scale and growth count where they lie: `state_dict()` would wait for the GPU. Other kinds are asked for theirs."""
    if not hasattr(scaler, "_growth_tracker"):
        return {"state": read_plain(scaler.state_dict(), changing(keep))}
    values = {name: getattr(scaler, name) for name in ("_scale", "_growth_tracker")}
    settings = {
        "scale": scaler._init_scale,
        "growth_factor": scaler._growth_factor,
        "backoff_factor": scaler._backoff_factor,
        "growth_interval": scaler._growth_interval,
        "_growth_tracker": scaler._init_growth_tracker,
    }
    refs = {name: None if value is None else keep(value, steady=False, checked=False) for name, value in values.items()}
    return {**refs, "settings": settings}


def read_plain(value: Any, keep: Callable[[torch.Tensor], Ref]) -> Any:
    """A copy of what is plain in a value."""
    try:
        return take_apart(value, keep)
    except LeftOut:
        return {}


def changing(keep: Keep) -> Callable[[torch.Tensor], Ref]:
    """For tensors that the script or a scheduler may change at any time."""
    return lambda tensor: keep(tensor, steady=False, checked=False)


class Counters:
    """The numbers in a plain object that holds an average: it counts its updates, and the count steers its decay."""

    def __init__(self, holder: Any) -> None:
        self._holder = weakref.ref(holder)

    def read(self) -> Tree:
        """The numbers."""
        holder = self._holder()
        return {} if holder is None else {name: value for name, value in vars(holder).items() if type(value) in (int, float)}

    def put_back(self, numbers: Tree) -> None:
        """Put them back."""
        holder = self._holder()
        if holder is not None:
            vars(holder).update(numbers)
