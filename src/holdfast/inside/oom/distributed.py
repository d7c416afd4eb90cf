"""Out of memory under DistributedDataParallel: no rank waits forever for another, and all split alike.

The other ranks are in `backward`, waiting for this rank's gradients. So the rank that ran out contributes NaN for every
gradient that it has not reduced yet. Each rank then sees in the reduced gradient that the step is void, and only then one
number is reduced: the parts to split into. A healthy step sends nothing beyond what DDP sends.

    rank 0    forward, backward ......... reduce | NaN: void -> agree (max) -> undo, repeat in 2 parts
    rank 1    forward, out of memory, NaN reduce | NaN: void -> agree (max) -> undo, repeat in 2 parts
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CANNOT = 1 << 30  # the vote of a rank for which no split is small enough
_STATELESS_HOOKS = ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook")


class SharedReduction:
    """One DDP model, and the collectives of a step that this rank must still join."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._model = weakref.ref(model)
        self.views = bool(model.gradient_as_bucket_view)
        self._forwards, self._forwards_per_part = 0, 1  # in this part so far, and in a part of a healthy step
        ignored: set[str] = getattr(model, "parameters_to_ignore", set())
        named = model.module.named_parameters()
        self._parameters = [weakref.ref(p) for name, p in named if p.requires_grad and name not in ignored]

    @property
    def model(self) -> DistributedDataParallel:
        """The model, held by a weak reference."""
        model = self._model()
        assert model is not None, "the model was deleted"
        return model

    @property
    def syncs(self) -> bool:
        """Whether backward reduces gradients: not inside the script's `no_sync`."""
        return bool(self.model.require_backward_grad_sync)

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count the forward passes inside the block."""
        handle = self.model.register_forward_pre_hook(self._count)
        try:
            yield
        finally:
            handle.remove()

    @contextlib.contextmanager
    def part(self, *, unsynced: bool) -> Iterator[None]:
        """One part of the batch; only the last part is reduced."""
        self._forwards = 0
        with self.model.no_sync() if unsynced else contextlib.nullcontext():
            yield
        self._forwards_per_part = self._forwards

    def contribute_nan(self, *, unsynced: bool, backward_begun: bool, reduced: set[int]) -> bool:
        """Join the rest of the step's collectives with NaN; False if all gradients were reduced already.

        `unsynced`: memory ran out in a part that does not reduce. `reduced`: ids of parameters that were reduced.
        """
        if unsynced:
            with self.model.no_sync():
                self._finish_forwards()
            self._forwards = 0
        if unsynced or not backward_begun:
            self._finish_forwards()
            reduced = set()
        missing = [parameter for parameter in self._trainable() if id(parameter) not in reduced]
        if missing:
            nans = [torch.full((), torch.nan, dtype=p.dtype, device=p.device).expand_as(p) for p in missing]
            torch.autograd.backward(missing, nans)
        return bool(missing)

    def contribute_nan_step(self, *, parts: int) -> None:
        """Join a whole step with NaN, to tell the other ranks that smaller parts are needed."""
        self._forwards = 0
        self.contribute_nan(unsynced=parts > 1, backward_begun=False, reduced=set())

    def is_void(self) -> bool:
        """Whether the reduced gradients are non-finite, by a rank's NaN or by themselves. Waits for the GPU."""
        gradients = [p.grad for p in self._trainable() if p.grad is not None and p.grad.layout == torch.strided]
        if not gradients:
            return False
        norms = torch._foreach_norm(gradients)
        first = norms[0]
        if any(norm.device != first.device or norm.dtype != first.dtype for norm in norms):
            norms = tuple(norm.to(first.device, torch.float32) for norm in norms)
        return not bool(torch.isfinite(torch.stack(norms).sum()))

    def agree(self, vote: int) -> int:
        """The largest vote of all ranks: the parts that a rank needs, 0 if it needs none."""
        votes = torch.tensor([vote], dtype=torch.int64, device=self.model.device)
        dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self.model.process_group)
        return int(votes.item())

    def _trainable(self) -> list[nn.Parameter]:
        return [parameter for reference in self._parameters if (parameter := reference()) is not None]

    def _count(self, *_: Any) -> None:
        self._forwards += 1

    def _finish_forwards(self) -> None:
        """Run the collectives of the part's remaining forward passes: buffers, and the bucket order."""
        model: Any = self.model
        if self._forwards:
            model._post_forward(None)  # of the pass that failed
        for _ in range(self._forwards_per_part - self._forwards):
            model._pre_forward(torch.zeros(()))
            model._post_forward(None)


def reduction_of(models: Iterable[nn.Module], parameters: Iterable[torch.Tensor]) -> tuple[SharedReduction | None, str]:
    """The DDP reduction of this training, if any, and the reason why a step cannot be repeated, or ''."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return None, ""
    parameters = list(parameters)
    modules = [module for model in models for module in model.modules()]
    if any(isinstance(module, nn.SyncBatchNorm) for module in modules):
        return None, "SyncBatchNorm exchanges statistics in the middle of the forward pass"
    kinds = {kind.__name__ for obj in (*modules, *parameters) for kind in type(obj).__mro__}
    if kinds & {"DTensor", "FlatParameter", "FullyShardedDataParallel", "FSDPModule"}:
        return None, "sharded parameters are gathered in the middle of the forward pass"
    trained = {id(parameter) for parameter in parameters}
    wrappers = [obj for obj in gc.get_objects() if type(obj) is DistributedDataParallel]
    wrappers = [w for w in wrappers if any(id(parameter) in trained for parameter in w.parameters())]
    if not wrappers or dist.get_world_size(wrappers[0].process_group) == 1:
        return None, ""
    if len(wrappers) > 1:
        return None, "several models use DistributedDataParallel, and a step may reduce any of them"
    reason = _unsupported(wrappers[0])
    return (None, reason) if reason else (SharedReduction(wrappers[0]), "")


def _unsupported(model: Any) -> str:
    for option in ("find_unused_parameters", "static_graph", "mixed_precision"):
        if getattr(model, option, None):
            return f"DistributedDataParallel with {option} tracks the step in a way that Holdfast cannot complete"
    if getattr(model, "_use_python_reducer", False) or getattr(model, "_delay_all_reduce_all_params", False):
        return "this DistributedDataParallel does not reduce during backward"
    if any(getattr(module, "sparse", False) for module in model.modules()):
        return "sparse gradients are reduced differently"
    hooks = [hook for hook, _ in getattr(model, "_comm_hooks", ())]
    if any(getattr(hook, "__name__", "") not in _STATELESS_HOOKS for hook in hooks):
        return "the DistributedDataParallel communication hook may keep state"
    return ""
