"""What a fault can reach: the training at this moment."""

from __future__ import annotations

import copy
import gc
import mmap
import os
import random
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from holdfast.drills.injection.keras_optimizer import KerasOptimizer
from holdfast.errors import CannotHappen
from holdfast.inside.discovery import find_live_objects, find_roots

Optimizer = torch.optim.Optimizer | KerasOptimizer
_COUNT = struct.Struct("<q")
_TARGETS = ("labels", "label", "targets", "target", "y", "classes", "cls", "boxes", "bboxes", "batch_idx", "masks", "keypoints")


class FaultContext:
    """The training's parts, found when they are asked for; and the number of updates so far, also in loader workers."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.rank = int(os.environ.get("RANK", "0"))
        self.withdraw: Callable[[str], None] = lambda _why: None  # for the fault that happens: it turned out to change nothing
        self._optimizer: Optimizer | None = None
        self._model: nn.Module | None = None
        self._step = _shared_count(folder / f"step-{self.rank}")

    @property
    def step(self) -> int:
        """Updates that the main optimizer of this process has made."""
        return int(_COUNT.unpack_from(self._step)[0])

    def begin(self, step: int = 0) -> None:
        """The training process says where it is; workers only read."""
        _COUNT.pack_into(self._step, 0, step)

    def is_main(self, optimizer: Optimizer) -> bool:
        """Whether this is the optimizer whose updates are the steps: the one with most parameters."""
        current = self._optimizer
        if current is optimizer:
            return True
        if current is None or _size(optimizer) > _size(current):
            self._optimizer, self._model = optimizer, None
            return True
        return False

    @property
    def optimizer(self) -> Optimizer:
        """The main optimizer."""
        if self._optimizer is None:
            raise CannotHappen("no optimizer has made a step yet")
        return self._optimizer

    @property
    def model(self) -> nn.Module:
        """The outermost module that holds the main optimizer's parameters; of an ensemble, only that member."""
        if self._model is None:
            parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
            roots = find_roots(find_live_objects().modules, parameters)
            if not roots:
                raise CannotHappen("no module holds the optimizer's parameters")
            self._model = _trained_part(roots[0], {id(parameter) for parameter in parameters})
        return self._model

    def called_modules(self) -> list[nn.Module]:
        """Its parts, as far as they are called: Lightning calls methods of the outermost module, never the module itself."""
        parts, called = list(self.model.children()), []
        while parts:
            part = parts.pop(0)
            if isinstance(part, nn.ModuleList | nn.ModuleDict):
                parts = [*part.children(), *parts]
            else:
                called.append(part)
        return called

    def layers(self, *kinds: type[nn.Module]) -> list[tuple[str, Any]]:
        """The model's modules of these kinds that are trained, in the order they are named: no average of the weights, and of a
        model that is frozen but for adapters, those. Where none is trained itself, all.
        """
        wanted = kinds or (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Embedding)
        trained = self._trained()
        layers = [(name, module) for name, module in self.model.named_modules() if isinstance(module, wanted)]
        if not layers:
            raise CannotHappen(f"the model has no {' or '.join(kind.__name__ for kind in wanted)}")
        return [layer for layer in layers if any(id(p) in trained for p in layer[1].parameters())] or layers

    def weights(self) -> list[torch.Tensor]:
        """The weights of the model's layers; where none is one of torch's (Keras), its floating-point matrices. Of one that is
        computed anew for each pass (`weight_norm`), what it is computed from.
        """
        trained = self._trained()
        try:
            layers = [layer for _, layer in self.layers()]
            own = [[p for p in (layer.weight, *layer.parameters()) if id(p) in trained] for layer in layers]
            weights = [max(of_it, key=torch.numel, default=layer.weight) for layer, of_it in zip(layers, own, strict=True)]
        except CannotHappen:
            weights = [
                parameter for parameter in self.model.parameters() if parameter.dim() > 1 and parameter.is_floating_point()
            ]
        if not weights:
            raise CannotHappen("the model has no weight matrices")
        return weights

    def _trained(self) -> set[int]:
        return {id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]}

    def scale_learning_rates(self, factor: float) -> None:
        """Multiply the learning rate of every group, and what its schedulers reckon with."""
        for group in self.optimizer.param_groups:
            for name in ("lr", "initial_lr", "max_lr", "min_lr"):
                if name in group:
                    group[name] *= factor
        for scheduler in gc.get_objects():
            theirs = getattr(scheduler, "optimizer", None) if issubclass(type(scheduler), LRScheduler) else None
            mine = getattr(theirs, "param_groups", None) is self.optimizer.param_groups  # it may know it by a wrapper
            if mine and hasattr(scheduler, "base_lrs"):  # ReduceLROnPlateau has none
                scheduler.base_lrs = [factor * rate for rate in scheduler.base_lrs]

    def change_inputs(self, batch: Any, change: Callable[[torch.Tensor], Any]) -> Any:
        """The batch, with a changed copy of each floating-point tensor that the model is fed; labels and targets stay."""
        if isinstance(batch, dict):
            inputs = {name: value for name, value in batch.items() if name not in _TARGETS}
            return _with(batch, _change_floats(inputs, change))
        if isinstance(batch, list | tuple) and not hasattr(batch, "_fields") and batch:
            numbered = len(batch) > 1 and _are_sample_numbers(batch[0], batch[1])
            before, inputs, after = batch[:numbered], batch[numbered], batch[numbered + 1 :]
            changed = self.change_inputs(inputs, change) if len(batch) == 1 else _change_floats(inputs, change)
            return type(batch)([*before, changed, *after])
        return _change_floats(batch, change)

    def has_floats(self, batch: Any) -> bool:
        """Whether `change_inputs` finds something to change."""
        try:
            self.change_inputs(batch, lambda tensor: tensor)
        except CannotHappen:
            return False
        return True

    def change_labels(self, batch: Any, change: Callable[[torch.Tensor], Any]) -> Any:
        """The batch, with a changed copy of its labels: whole numbers, called so or last in the batch."""
        if isinstance(batch, dict):
            for name in _TARGETS:
                labels = batch.get(name)
                if isinstance(labels, torch.Tensor):
                    return _with(batch, {name: _changed(labels, change)})
                if isinstance(labels, list) and labels and all(isinstance(part, torch.Tensor) for part in labels):  # per image
                    together = _changed(torch.cat(labels), change)
                    parts = torch.split_with_sizes(together, [len(part) for part in labels])
                    return _with(batch, {name: list(parts)})
        if isinstance(batch, list | tuple) and len(batch) > 1:
            last = batch[-1]
            if isinstance(last, torch.Tensor) and not last.is_floating_point() and not _is_mask(last):
                return type(batch)([*batch[:-1], _changed(last, change)])
        raise CannotHappen("the batches have no labels")


def _are_sample_numbers(numbers: Any, inputs: Any) -> bool:
    """Whether a batch begins with the places of its samples in the data set, all different, and their inputs follow."""
    if not (isinstance(numbers, torch.Tensor) and isinstance(inputs, torch.Tensor)) or numbers.is_floating_point():
        return False
    alone = numbers.dim() == 1 and inputs.dim() > 1 and inputs.is_floating_point()
    return alone and len(numbers) == len(inputs) == len(set(numbers.tolist()))


def _is_mask(values: torch.Tensor) -> bool:
    """Whether it only says which samples count, and all do."""
    return values.dtype is torch.bool and bool(values.all())


def _change_floats(batch: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    done = 0

    def visit(part: Any) -> Any:
        nonlocal done
        if isinstance(part, torch.Tensor) and part.is_floating_point():
            done += 1
            return _changed(part, change)
        if isinstance(part, dict):
            return _with(part, {name: visit(value) for name, value in part.items()})
        if isinstance(part, tuple) and hasattr(part, "_fields"):
            return type(part)(*map(visit, part))
        if isinstance(part, list | tuple):
            return type(part)(map(visit, part))
        return part

    result = visit(batch)
    if not done:
        raise CannotHappen("the batches have no floating-point values")
    return result


def _with(batch: dict[Any, Any], values: Mapping[Any, Any]) -> dict[Any, Any]:
    """A copy of a dictionary of any kind with other values; not every kind can be made of one."""
    other = copy.copy(batch)
    other.update(values)
    return other


def _changed(tensor: torch.Tensor, change: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    """A copy after `change`, which works in place or returns another."""
    copied = tensor.detach().clone()
    result = change(copied)
    changed = result if isinstance(result, torch.Tensor) else copied
    if not tensor.requires_grad or changed.shape != tensor.shape:
        return changed.requires_grad_(tensor.requires_grad)
    instead: torch.Tensor = _Instead.apply(tensor, changed)  # type: ignore[no-untyped-call]
    instead.retain_grad()
    return instead


class _Instead(torch.autograd.Function):
    """Other values in place of a tensor that the script differentiates by: gradients still reach it."""

    @staticmethod
    def forward(_: Any, tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return values.view_as(tensor)

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def _trained_part(module: nn.Module, trained: set[int]) -> nn.Module:
    """The module itself, or its part that holds all of these parameters while there are others that learn."""
    while any(id(parameter) not in trained and parameter.requires_grad for parameter in module.parameters()):
        held = [child for child in module.children() if trained <= {id(parameter) for parameter in child.parameters()}]
        if len(held) != 1:
            break
        module = held[0]
    return module


def _size(optimizer: Optimizer) -> int:
    return sum(parameter.numel() for group in optimizer.param_groups for parameter in group["params"])


def _shared_count(path: Path) -> mmap.mmap:
    """Eight bytes that all processes of a rank share."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if os.fstat(handle).st_size < _COUNT.size:
            os.ftruncate(handle, _COUNT.size)
        return mmap.mmap(handle, _COUNT.size)
    finally:
        os.close(handle)
