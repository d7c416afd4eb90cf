"""Steps under DistributedDataParallel: no rank waits for ever when one of them runs out of memory, and all split alike.

The other ranks are in `backward`, waiting for this one's share of the reduction. So the rank that ran out gives one: NaN, for
every gradient it has not given yet. Then each rank sees in the reduced gradient itself that this step is void, and only then
one number is reduced: into how many parts to split. In a healthy step nothing is added to what DDP sends.

    rank 0    forward, backward ......... reduce | NaN: void -> agree (max) -> undo, again in 2 parts
    rank 1    forward, out of memory, NaN reduce | NaN: void -> agree (max) -> undo, again in 2 parts
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

CANNOT = 1 << 30  # voted by a rank for which no split is small enough
_PLAIN_HOOKS = ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook")  # keep nothing from one step to the next


class SharedReduction:
    """One DDP model, and what this rank still owes to the others in a step."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._model = weakref.ref(model)
        self.views = bool(model.gradient_as_bucket_view)
        self._entered, self._usual = 0, 1  # forward passes: in this part so far, in a part of a healthy step
        ignored: set[str] = getattr(model, "parameters_to_ignore", set())
        named = model.module.named_parameters()
        self._parameters = [weakref.ref(p) for name, p in named if p.requires_grad and name not in ignored]

    @property
    def model(self) -> DistributedDataParallel:
        """The model; it is not kept alive from here."""
        model = self._model()
        assert model is not None, "the model is gone"
        return model

    @property
    def syncs(self) -> bool:
        """Whether this call reduces gradients; not inside the script's own `no_sync`."""
        return bool(self.model.require_backward_grad_sync)

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count the forward passes in the block."""
        handle = self.model.register_forward_pre_hook(self._count)
        try:
            yield
        finally:
            handle.remove()

    @contextlib.contextmanager
    def part(self, *, unsynced: bool) -> Iterator[None]:
        """One part of the batch; all but the last are not reduced. The next ones will have as many forward passes."""
        self._entered = 0
        with self.model.no_sync() if unsynced else contextlib.nullcontext():
            yield
        self._usual = self._entered

    def give_nothing(self, *, unsynced: bool, backward_begun: bool, touched: set[int]) -> bool:
        """Take part in the rest of this step's collectives with NaN; False if there was nothing left to give.

        `unsynced`: it was in a part that does not reduce. `touched`: parameters whose gradients are already given.
        """
        if unsynced:
            with self.model.no_sync():
                self._finish_forwards()
            self._entered = 0
        if unsynced or not backward_begun:
            self._finish_forwards()
            touched = set()
        owed = [parameter for parameter in self._reduced() if id(parameter) not in touched]
        if owed:
            nothing = [torch.full((), torch.nan, dtype=p.dtype, device=p.device).expand_as(p) for p in owed]
            torch.autograd.backward(owed, nothing)
        return bool(owed)

    def give_nothing_at_all(self, *, parts: int) -> None:
        """Take part in a whole step with NaN, to have the others hear that smaller parts are needed."""
        self._entered = 0
        self.give_nothing(unsynced=parts > 1, backward_begun=False, touched=set())

    def is_void(self) -> bool:
        """Whether the reduced gradients are not finite: some rank gave NaN, or the step was bad by itself. Waits for the GPU."""
        gradients = [p.grad for p in self._reduced() if p.grad is not None and p.grad.layout == torch.strided]
        if not gradients:
            return False
        norms = torch._foreach_norm(gradients)
        first = norms[0]
        if any(norm.device != first.device or norm.dtype != first.dtype for norm in norms):
            norms = tuple(norm.to(first.device, torch.float32) for norm in norms)
        return not bool(torch.isfinite(torch.stack(norms).sum()))

    def agree(self, vote: int) -> int:
        """The largest vote of all ranks: the parts that a rank which ran out asks for, 0 from the others."""
        votes = torch.tensor([vote], dtype=torch.int64, device=self.model.device)
        dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self.model.process_group)
        return int(votes.item())

    def _reduced(self) -> list[nn.Parameter]:
        return [parameter for reference in self._parameters if (parameter := reference()) is not None]

    def _count(self, *_: Any) -> None:
        self._entered += 1

    def _finish_forwards(self) -> None:
        """Do what the remaining forward passes of a part would have sent: buffers, and the order of the buckets."""
        model: Any = self.model
        if self._entered:
            model._post_forward(None)  # of the pass that broke off
        for _ in range(self._usual - self._entered):
            model._pre_forward(torch.zeros(()))
            model._post_forward(None)


def reduction_of(models: Iterable[nn.Module], parameters: Iterable[torch.Tensor]) -> tuple[SharedReduction | None, str]:
    """How the ranks of this training reduce gradients; the words say why a step cannot be repeated, if it cannot."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return None, ""
    parameters = list(parameters)
    modules = [module for model in models for module in model.modules()]
    if any(isinstance(module, nn.SyncBatchNorm) for module in modules):
        return None, "SyncBatchNorm exchanges statistics in the middle of the forward pass"
    kinds = {kind.__name__ for thing in (*modules, *parameters) for kind in type(thing).__mro__}
    if kinds & {"DTensor", "FlatParameter", "FullyShardedDataParallel", "FSDPModule"}:
        return None, "sharded parameters are gathered in the middle of the forward pass"
    mine = {id(parameter) for parameter in parameters}
    wrappers = [thing for thing in gc.get_objects() if type(thing) is DistributedDataParallel]
    wrappers = [w for w in wrappers if any(id(parameter) in mine for parameter in w.parameters())]
    if not wrappers or dist.get_world_size(wrappers[0].process_group) == 1:
        return None, ""
    if len(wrappers) > 1:
        return None, "several models are reduced by DistributedDataParallel, and which of them in a step is not known"
    why_not = _why_not(wrappers[0])
    return (None, why_not) if why_not else (SharedReduction(wrappers[0]), "")


def _why_not(model: Any) -> str:
    for option in ("find_unused_parameters", "static_graph", "mixed_precision"):
        if getattr(model, option, None):
            return f"DistributedDataParallel with {option} keeps track of the step in a way that cannot be completed by hand"
    if getattr(model, "_use_python_reducer", False) or getattr(model, "_delay_all_reduce_all_params", False):
        return "DistributedDataParallel does not reduce during backward here"
    if any(getattr(module, "sparse", False) for module in model.modules()):
        return "sparse gradients are reduced in another way"
    hooks = [hook for hook, _ in getattr(model, "_comm_hooks", ())]
    if any(getattr(hook, "__name__", "") not in _PLAIN_HOOKS for hook in hooks):
        return "the communication hook of DistributedDataParallel may keep what it is given"
    return ""
