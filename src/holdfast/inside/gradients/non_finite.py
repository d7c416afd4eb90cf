"""Which tensors of a thing that is about to be saved hold NaN or Inf: one sum for each, and one wait for each device.

Only what lies in containers, modules and plain attributes is looked at, and nothing of theirs is called. What may be infinite is
decided as `holdfast checkpoints verify` does: masks, and what is kept beside weights and optimizer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from holdfast.state.parameters import is_usable, local_tensor

_DEEPEST, _MOST = 16, 1_000_000
_FEW = 64  # things in a list that are looked at for what it is
_MUST_BE_FINITE = ("weights", "optimizer", "ema")
_MASK = re.compile(r"mask|causal|tril|triu", re.IGNORECASE)
_CLOSED = (str, bytes, int, float, complex, bool, type(None), type, torch.dtype, torch.device)


class Bad(NamedTuple):
    """A tensor with numbers that are not finite."""

    name: str
    nan: int
    inf: int
    of: int

    def as_row(self) -> dict[str, Any]:
        """As the journal holds it."""
        return self._asdict()


def tensors_in(thing: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in a thing with the way to it: `model.fc.weight`, `optimizer.state.0.exp_avg`. The same one comes once."""
    seen: dict[int, Any] = {}  # with the things: some are made here, and the next one would get the same id
    waiting: list[tuple[str, Any, int]] = [("", thing, 0)]
    while waiting and len(seen) < _MOST:
        path, part, depth = waiting.pop()
        if isinstance(part, _CLOSED) or id(part) in seen:
            continue
        seen[id(part)] = part
        if isinstance(part, torch.Tensor):
            yield path or "tensor", part
        elif depth < _DEEPEST:
            before = f"{path}." if path else ""
            waiting += [(f"{before}{name}", inner, depth + 1) for name, inner in reversed(_parts(part))]


def _parts(thing: Any) -> list[tuple[Any, Any]]:
    if isinstance(thing, nn.Module):
        return [*thing.named_parameters(), *thing.named_buffers()]
    if isinstance(thing, torch.optim.Optimizer):
        return [("state", dict(enumerate(thing.state.values())))]
    if isinstance(thing, dict):
        return list(dict.items(thing))
    if isinstance(thing, (list, tuple)):
        return list(enumerate(thing))
    try:
        return (_trained_parts(thing) or list(vars(thing).items())) if not callable(thing) else []
    except TypeError:
        return []


def _trained_parts(thing: Any) -> list[tuple[str, Any]]:
    """The models and optimizers of an object that has both: the rest of a trainer may be all of its data, and itself again.

    An optimizer is known by its groups: dill loads it with another class.
    """
    parts = list(_attributes(thing).items())
    models = [pair for pair in parts if issubclass(type(pair[1]), nn.Module)]
    optimizers = [pair for pair in parts if "param_groups" in _attributes(pair[1])] if models else []
    return [*models, *optimizers] if optimizers else []


def _attributes(thing: Any) -> dict[str, Any]:
    try:
        return dict(object.__getattribute__(thing, "__dict__"))  # some objects of torch warn whoever asks them
    except AttributeError:
        return {}


def is_state(thing: Any) -> bool:
    """Whether it looks like the state of something: nested, or with names such as `fc.weight`; a sample has neither. A trainer
    may also be saved as a whole.
    """
    if isinstance(thing, (nn.Module, torch.optim.Optimizer)):
        return True
    if isinstance(thing, (list, tuple)):
        return any(isinstance(part, (dict, nn.Module, torch.optim.Optimizer)) and is_state(part) for part in thing[:_FEW])
    if not isinstance(thing, dict):
        return bool(models_of_trainer(thing))
    names = [name for name, value in dict.items(thing) if isinstance(value, torch.Tensor)]
    dotted = any(isinstance(name, str) and ("." in name or name in ("weight", "bias")) for name in names)
    return dotted or any(isinstance(value, (dict, nn.Module)) or models_of_trainer(value) for value in dict.values(thing))


def models_of_trainer(thing: Any) -> list[nn.Module]:
    """The models of an object that has an optimizer too; none of any other."""
    return [part for _, part in _trained_parts(thing) if isinstance(part, nn.Module)]


def bad_tensors(thing: Any) -> list[Bad]:
    """The tensors of a thing that hold NaN or Inf and should not."""
    named = [(name, values) for name, tensor in tensors_in(thing) if (values := _checkable(tensor)) is not None]
    with torch.no_grad():
        finite = _finite([tensor for _, tensor in named])
        suspects = [pair for pair, well in zip(named, finite, strict=True) if not well]
        if not suspects:
            return []
        must = _must_be_finite(thing)
        found = (_look_at(name, tensor) for name, tensor in suspects if must.get(name, True))
        return [bad for bad in found if bad is not None]


def _must_be_finite(thing: Any) -> dict[str, bool]:
    """For each tensor by its name, whether it is part of weights, averaged weights or an optimizer."""
    from holdfast.checkpoints.contents import TensorInfo
    from holdfast.checkpoints.parts import parts_of
    from holdfast.checkpoints.parts import tensors_in as tensors_of

    seen: dict[int, Any] = {}  # a trainer in it leads back to itself

    def shadow(value: Any, path: str, depth: int) -> Any:
        if isinstance(value, _CLOSED) or id(value) in seen or len(seen) > _MOST:
            return None
        seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            return TensorInfo(path, str(value.dtype), tuple(value.shape), 0)
        if depth == _DEEPEST:
            return None
        listed = isinstance(value, (list, tuple))  # several models in a list are weights as much as by name
        parts = [(name, shadow(part, f"{path}.{name}" if path else str(name), depth + 1)) for name, part in _parts(value)]
        return {str(name) if listed else name: part for name, part in parts}

    parts = parts_of(shadow(thing, "", 0))
    return {tensor.name: part.role in _MUST_BE_FINITE for part in parts for tensor in tensors_of(part.value)}


def _checkable(tensor: torch.Tensor) -> torch.Tensor | None:
    """This rank's numbers, if they are of a kind that may be NaN."""
    values = local_tensor(tensor)
    if not is_usable(values) or values.is_quantized or not values.numel():
        return None
    if values.is_floating_point():
        return values.float() if values.itemsize == 1 else values  # eight bits have no sum
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else None


def _finite(tensors: list[torch.Tensor]) -> list[bool]:
    """For each tensor, whether its sum is finite: a sum is NaN or infinite whenever a part of it is. It may also overflow."""
    found = [True] * len(tensors)
    by_device: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    for number, tensor in enumerate(tensors):
        wide = tensor.dtype if tensor.dtype in (torch.float32, torch.float64) else torch.float32
        by_device.setdefault(tensor.device, []).append((number, torch.isfinite(tensor.sum(dtype=wide))))
    for sums in by_device.values():
        for (number, _), well in zip(sums, torch.stack([is_finite for _, is_finite in sums]).tolist(), strict=True):
            found[number] = well
    return found


def _look_at(name: str, tensor: torch.Tensor) -> Bad | None:
    nan, inf = int(torch.isnan(tensor).sum()), int(torch.isinf(tensor).sum())
    last = name.rpartition(".")[2]
    if not nan and (not inf or last in ("upper_bound", "lower_bound") or _is_mask(last, tensor)):  # of a constraint: no limit
        return None
    return Bad(name, nan, inf, tensor.numel())


def _is_mask(name: str, tensor: torch.Tensor) -> bool:
    """Whether it is called one or has the shape of one, and holds nothing but 0, 1 and minus infinity."""
    if not _MASK.search(name) and (name in ("weight", "bias") or sum(length > 1 for length in tensor.shape) < 2):
        return False
    return bool(((tensor == 0) | (tensor == 1) | (tensor == -math.inf)).all())
