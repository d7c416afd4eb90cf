"""A saved step meets the script again: which batch it can stand for, which model its weights are, how random numbers were."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from holdfast.inside.discovery import plain_name
from holdfast.inside.observers.batch_contents import leaves, same_shape


def state_dicts(state: Mapping[str, Any], name: str = "model") -> dict[str, dict[str, torch.Tensor]]:
    """The models' states in what was saved, by plain names: one flat dictionary, or several in one another."""
    tensors = {plain_name(key): value for key, value in state.items() if isinstance(value, torch.Tensor)}
    found = {name: tensors} if tensors else {}
    for key, part in state.items():
        if isinstance(part, Mapping):
            found |= state_dicts(part, f"{name}.{key}" if tensors else key)
    return found


def alike(saved: Any, drawn: Any) -> bool:
    """Whether a saved batch could stand for a drawn one: the same fields, of the same kinds."""
    ours, theirs = dict(leaves(saved)), dict(leaves(drawn))
    if ours.keys() != theirs.keys():
        lists = isinstance(saved, list) and isinstance(drawn, list) and not any(isinstance(v, torch.Tensor) for v in saved)
        return lists or (type(saved) is type(drawn) and not isinstance(saved, (dict, tuple, list, torch.Tensor)))
    for name, mine in ours.items():
        other = theirs[name]
        if isinstance(mine, torch.Tensor) != isinstance(other, torch.Tensor):
            return False
        if isinstance(mine, torch.Tensor) and (mine.dtype != other.dtype or mine.dim() != other.dim()):
            return False
    return True


def set_randomness(randomness: Mapping[str, Any]) -> None:
    """Set the generators as they were."""
    if "torch" in randomness:
        torch.set_rng_state(randomness["torch"])
    cuda = randomness.get("cuda")
    if cuda and torch.cuda.is_available():
        for device, state in cuda.items() if isinstance(cuda, Mapping) else enumerate(cuda):
            if int(device) < torch.cuda.device_count():
                torch.cuda.set_rng_state(state, int(device))
    if "python" in randomness:
        version, numbers, gauss = randomness["python"]
        random.setstate((version, tuple(numbers), gauss))
    held = randomness.get("numpy")
    if isinstance(held, Mapping):
        held = (held["kind"], held["key"], held["pos"], held["has_gauss"], held["gauss"])
    if held is not None:
        name, keys, *rest = held
        np.random.set_state((name, np.asarray(keys, dtype=np.uint32), *rest))


def moved(batch: Any, like: Any) -> Any:
    """A fresh copy of a saved batch, each tensor where the drawn one's is."""
    devices = {name: value.device for name, value in leaves(like) if isinstance(value, torch.Tensor)}
    homes = iter([devices.get(name) for name, _ in leaves(batch)])

    def move(value: Any) -> Any:
        home = [next(homes, None) for _ in leaves(value)]
        return value.to(home[0] or "cpu", copy=True) if isinstance(value, torch.Tensor) else value

    return same_shape(batch, move)


def fits(module: nn.Module, state: Mapping[str, torch.Tensor]) -> bool:
    """Whether a saved state is that of a module: the same names and shapes."""
    try:
        own = {plain_name(name): tuple(tensor.shape) for name, tensor in module.state_dict(keep_vars=True).items()}
    except Exception:  # noqa: BLE001 - some module that happens to live here
        return False
    return bool(own) and own == {name: tuple(tensor.shape) for name, tensor in state.items()}


def related(one: nn.Module, other: nn.Module) -> bool:
    """Whether one of two modules holds the other."""
    return any(part is other for part in one.modules()) or any(part is one for part in other.modules())
