"""Find what belongs to a training besides models and optimizers: schedulers, gradient scalers, averaged weights (EMA).

The garbage collector is searched once per training. Only types and instance dicts are read: an attribute of a lazy proxy could
run code.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from holdfast.state.parameters import parameters_of
from holdfast.state.values import attributes_of

Optimizer = torch.optim.Optimizer
_SCHEDULER_NAME = re.compile(r"(Scheduler|LR|Warmup\w*|Annealing\w*)$")
_AVERAGE_NAME = re.compile(r"EMA|Ema(?![a-z])|Averaged|MovingAverage")


@dataclass(slots=True)
class RelatedObjects:
    """The related objects, and a message for each that cannot be restored."""

    schedulers: list[Any] = field(default_factory=list)
    scalers: list[Any] = field(default_factory=list)
    averages: list[Any] = field(default_factory=list)
    counters: list[Any] = field(default_factory=list)  # objects that hold an average and count its updates
    not_restored: list[str] = field(default_factory=list)


def find_related_objects(models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> RelatedObjects:
    """Search the garbage collector for objects of these optimizers and models."""
    models, optimizers = list(models), list(optimizers)
    related, ours = RelatedObjects(), {id(optimizer): number for number, optimizer in enumerate(optimizers)}
    kinds: dict[type, str] = {}
    found: dict[str, list[Any]] = {"scheduler": [], "scaler": [], "average": []}
    for obj in gc.get_objects():
        cls = type(obj)
        kind = kinds.get(cls)
        if kind is None:
            kind = kinds[cls] = _kind_of(cls)
        if kind:
            found[kind].append(obj)
    related.scalers = [scaler for scaler in found["scaler"] if _scales(scaler, ours)]
    _add_schedulers(found["scheduler"], ours, related)
    _add_averages(found["average"], models, optimizers, related)
    for objects in (related.schedulers, related.scalers, related.averages, related.counters):
        objects.sort(key=lambda obj: type(obj).__qualname__)  # the same order in every process, unlike the collector's
    related.schedulers.sort(key=lambda scheduler: ours.get(id(innermost(attributes_of(scheduler).get("optimizer"))), -1))
    return related


def innermost(optimizer: Any) -> Any:
    """The optimizer inside wrappers such as Accelerate's and Lightning's."""
    for _ in range(8):
        attributes = attributes_of(optimizer)
        inner = attributes.get("optimizer", attributes.get("_optimizer"))
        if inner is None or Optimizer not in type(inner).__mro__:
            break
        optimizer = inner
    return optimizer


def _kind_of(kind: type) -> str:
    bases = kind.__mro__
    if LRScheduler in bases:
        return "scheduler"
    if torch.amp.GradScaler in bases:
        return "scaler"
    if AveragedModel in bases or (_AVERAGE_NAME.search(kind.__name__) and kind.__module__ != "builtins"):
        return "average"
    steps = any("step" in vars(base) for base in bases)
    is_other = nn.Module in bases or Optimizer in bases or not _SCHEDULER_NAME.search(kind.__name__)
    return "scheduler" if steps and not is_other else ""


def _scales(scaler: Any, ours: Container[int]) -> bool:
    """Whether a scaler is enabled, and not only for other optimizers."""
    attributes = attributes_of(scaler)
    optimizers = set(attributes.get("_per_optimizer_states", {}))
    return bool(attributes.get("_enabled")) and (not optimizers or any(optimizer in ours for optimizer in optimizers))


def _add_schedulers(candidates: list[Any], ours: Container[int], related: RelatedObjects) -> None:
    """Add the schedulers of our optimizers. An outer one restores those in it, or if it cannot, they are restored themselves."""
    inner = {id(child) for outer in candidates if _has_state(outer) for child in _children(outer)}
    for scheduler in candidates:
        if id(scheduler) in inner or not _works_on(scheduler, ours):
            continue
        kind = type(scheduler)
        if _has_state(scheduler):
            related.schedulers.append(scheduler)
        elif not any(_has_state(child) for child in _children(scheduler)):
            related.not_restored.append(
                f"{kind.__name__} sets the learning rate and has no state_dict(): a rollback does not restore it. "
                f"To restore it, add state_dict() and load_state_dict() to {kind.__name__}."
            )


def _has_state(scheduler: Any) -> bool:
    return hasattr(type(scheduler), "state_dict") and hasattr(type(scheduler), "load_state_dict")


def _children(outer: Any) -> list[Any]:
    attributes = attributes_of(outer)
    held = [attributes.get(name) for name in ("_schedulers", "schedulers", "scheduler", "after_scheduler", "lr_scheduler")]
    return [child for value in held for child in (value if isinstance(value, (list, tuple)) else [value]) if child is not None]


def _works_on(scheduler: Any, ours: Container[int]) -> bool:
    optimizer = attributes_of(scheduler).get("optimizer")
    if optimizer is not None:
        return id(innermost(optimizer)) in ours
    return any(_works_on(child, ours) for child in _children(scheduler) if attributes_of(child).get("optimizer") is not None)


def _add_averages(candidates: list[Any], models: list[nn.Module], optimizers: list[Optimizer], related: RelatedObjects) -> None:
    """Add averages: they have the parameters of one of our models, and none that is trained."""
    trained = {id(parameter) for optimizer in optimizers for parameter in parameters_of(optimizer)}
    shapes = [_shapes(part) for model in models for part in model.modules() if _holds(part, trained)]
    for candidate in candidates:
        if isinstance(candidate, nn.Module):
            copies = [candidate, *candidate.children()]
            whole: nn.Module = candidate
        else:
            copies = [value for value in attributes_of(candidate).values() if nn.Module in type(value).__mro__]
            whole = copies[0] if copies else nn.Identity()
        if any((own := _shapes(copy)) and own in shapes for copy in copies) and not _holds(whole, trained):
            related.averages.append(whole)
            if whole is not candidate:
                related.counters.append(candidate)
        elif not isinstance(candidate, nn.Module) and _matching_tensors(candidate, models):
            related.not_restored.append(
                f"{type(candidate).__name__} looks like an average of the weights that is not an nn.Module: it is not restored. "
                f"To restore it: run.ema(copy)."
            )


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in module.named_parameters()}


def _holds(module: nn.Module, trained: set[int]) -> bool:
    return any(id(parameter) in trained for parameter in module.parameters())


def _matching_tensors(candidate: Any, models: list[nn.Module]) -> bool:
    """Whether an object holds a list of tensors shaped like a model's parameters."""
    for held in attributes_of(candidate).values():
        tensors = list(held.values()) if type(held) is dict else held if type(held) is list else []
        if tensors and all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            shapes = [tensor.shape for tensor in tensors]
            if any(shapes == [p.shape for p in model.parameters() if p.requires_grad] for model in models):
                return True
    return False
