"""Match a saved step with the live script: its batches, its weights and its random generators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from holdfast.inside.discovery import plain_name
from holdfast.inside.observers.batch_contents import leaves, tree_map


def state_dicts(state: Mapping[str, Any], name: str = "model") -> dict[str, dict[str, torch.Tensor]]:
    """The saved model state dicts, by plain names: one flat dict, or several nested ones."""
    tensors = {plain_name(key): value for key, value in state.items() if isinstance(value, torch.Tensor)}
    states = {name: tensors} if tensors else {}
    for key, part in state.items():
        if isinstance(part, Mapping):
            states |= state_dicts(part, f"{name}.{key}" if tensors else key)
    return states


def alike(saved: Any, drawn: Any) -> bool:
    """Whether a saved batch can replace a drawn one: the same fields with the same types."""
    saved_fields, drawn_fields = dict(leaves(saved)), dict(leaves(drawn))
    if saved_fields.keys() != drawn_fields.keys():
        lists = isinstance(saved, list) and isinstance(drawn, list) and not any(isinstance(v, torch.Tensor) for v in saved)
        return lists or (type(saved) is type(drawn) and not isinstance(saved, (dict, tuple, list, torch.Tensor)))
    for name, mine in saved_fields.items():
        other = drawn_fields[name]
        if isinstance(mine, torch.Tensor) != isinstance(other, torch.Tensor):
            return False
        if isinstance(mine, torch.Tensor) and (mine.dtype != other.dtype or mine.dim() != other.dim()):
            return False
    return True


def set_randomness(randomness: Mapping[str, Any]) -> None:
    """Set torch's random generators to their saved states; those of missing GPUs are skipped."""
    if "torch" in randomness:
        torch.set_rng_state(randomness["torch"])
    for device, state in randomness.get("cuda", {}).items():
        if torch.cuda.is_available() and device < torch.cuda.device_count():
            torch.cuda.set_rng_state(state, device)


def moved(batch: Any, like: Any) -> Any:
    """A copy of a saved batch, each tensor on the device of the drawn one."""
    devices = {name: value.device for name, value in leaves(like) if isinstance(value, torch.Tensor)}
    targets = iter([devices.get(name) for name, _ in leaves(batch)])

    def move(value: Any) -> Any:
        target = [next(targets, None) for _ in leaves(value)]
        return value.to(target[0] or "cpu", copy=True) if isinstance(value, torch.Tensor) else value

    return tree_map(move, batch)


def fits(module: nn.Module, state: Mapping[str, torch.Tensor]) -> bool:
    """Whether a saved state has the names and shapes of a module."""
    try:
        own = {plain_name(name): tuple(tensor.shape) for name, tensor in module.state_dict(keep_vars=True).items()}
    except Exception:  # noqa: BLE001 - an unrelated module of the process
        return False
    return bool(own) and own == {name: tuple(tensor.shape) for name, tensor in state.items()}


def related(module: nn.Module, other: nn.Module) -> bool:
    """Whether one of two modules contains the other."""
    return any(part is other for part in module.modules()) or any(part is module for part in other.modules())
