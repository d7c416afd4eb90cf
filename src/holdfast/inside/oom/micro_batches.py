"""`@run.step`: a training step that survives running out of memory.

    @run.step
    def step(batch):                      # from batch to loss
        return loss_of(model(batch["x"]), batch["y"])

    loss = step(batch)                    # forward and backward, in as many parts as memory needs

One call:  note the state before -> forward and backward of each part -> done
                 ^                                      |
                 +--- undo, free, twice as many parts <-+ out of memory
"""

from __future__ import annotations

import contextlib
import functools
import gc
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from holdfast.errors import DoesNotFit, UsageError
from holdfast.inside.discovery import find_live_objects, find_roots
from holdfast.inside.guard.batchnorm import RunningStatistics
from holdfast.inside.oom.distributed import CANNOT, SharedReduction, reduction_of
from holdfast.inside.oom.shortage import Shortage, shortage_of
from holdfast.inside.oom.splitting import cut, size_of
from holdfast.inside.oom.undo import StateBefore

if TYPE_CHECKING:
    from holdfast.inside.observers.losses import Losses
    from holdfast.inside.scope import Scope

Call = tuple[tuple[Any, ...], dict[str, Any]]  # positional and named arguments
_GROW_AFTER, _MAX_GROW_AFTER = 200, 25_600  # good steps before fewer parts are tried; 4x after each failure
_JUST_GROWN = 20  # steps; memory that runs out so soon means that growing was a mistake
_CHECK_EVERY, _MAX_RETRIES = 8, 2  # steps between two checks of the allocator; its retries in that time
_NO_CONTEXT = contextlib.nullcontext()
_BATCH_NORM = (
    "Batch normalisation takes its statistics from each part, not from the whole batch: the gradient is that of smaller "
    "batches. Group or layer normalisation, or frozen statistics, do not depend on the split."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A step function, and how its batches are split and its losses add up."""

    function: Callable[..., Any]
    scaler: Any = None
    reduction: str = "mean"
    weight: Callable[..., Any] | None = None
    split: Callable[[Any, int], Any] | None = None  # (batch, parts) -> [(part, samples), ...]

    def size(self, call: Call) -> int | None:
        """The number of samples in a call's arguments; None if unknown."""
        args, kwargs = call
        if self.split is not None:
            return int(sum(samples for _, samples in self.split(args[0], 1)))
        return size_of(args[0] if len(args) == 1 and not kwargs else {**dict(enumerate(args)), **kwargs})

    def more_parts(self, call: Call, parts: int, smallest: int) -> int | None:
        """The next number of parts to try; None if the parts cannot be smaller."""
        if self.split is not None:
            more = len(self.split(call[0][0], 2 * parts))
            return more if more > len(self.split(call[0][0], parts)) else None
        max_parts = (self.size(call) or 0) // smallest
        return min(2 * parts, max_parts) if parts < max_parts else None

    def pieces(self, call: Call, parts: int, smallest: int) -> list[tuple[Call, float | None]]:
        """The arguments of each part, and the weight of its loss; None for an unweighted sum."""
        cuts = self._cuts(call, parts, smallest) if parts > 1 else []
        if len(cuts) < 2:
            return [(call, None)]
        if self.reduction == "sum":
            return [(piece, None) for piece, _ in cuts]
        weights = [float(samples if self.weight is None else self.weight(*piece[0], **piece[1])) for piece, samples in cuts]
        total = sum(weights)
        if not total > 0.0:
            return [(piece, 1.0 / len(cuts)) for piece, _ in cuts]
        return [(piece, weight / total) for (piece, _), weight in zip(cuts, weights, strict=True) if weight]

    def _cuts(self, call: Call, parts: int, smallest: int) -> list[tuple[Call, int]]:
        args, kwargs = call
        if self.split is not None:
            return [(((part, *args[1:]), kwargs), samples) for part, samples in self.split(args[0], parts)]
        size = self.size(call)
        if size is None:
            return []
        named = [
            (list(cuts.values()), samples)
            for cuts, samples in cut({**dict(enumerate(args)), **kwargs}, size, min(parts, size // smallest))
        ]
        count = len(args)
        return [((tuple(values[:count]), dict(zip(kwargs, values[count:], strict=True))), samples) for values, samples in named]


@dataclass(slots=True)
class _Failure:
    """Where in a step memory ran out; the error no longer holds the frames with activations."""

    error: BaseException
    shortage: Shortage
    unsynced: bool
    backward_begun: bool


class MicroBatches:
    """Splits the batches of a run into as many parts as memory needs."""

    def __init__(self, scope: Scope, losses: Losses) -> None:
        self._scope, self._losses = scope, losses
        self._heals = any(scope.policy.heals_from(f"{where}-out-of-memory") for where in ("gpu", "host"))
        self.parts = 1  # agreed by all ranks
        self._own = 1  # what this rank needs; more than `parts` until the ranks agree
        self._good, self._grow_after, self._grown = 0, _GROW_AFTER, False
        self._calls, self._retries, self._warned_batch_norm = 0, -1, False
        self._parameters: list[weakref.ref[torch.Tensor]] = []
        self._batch_norms: list[weakref.ref[nn.Module]] = []
        self._statistics = RunningStatistics(())
        self._reduction: SharedReduction | None = None
        self._unsupported = ""  # why a step cannot be repeated

    def step(self, function: Callable[..., Any], **how: Any) -> Callable[..., torch.Tensor]:
        """Wrap a step function: it runs backward too, and returns the detached loss of the whole batch."""
        job = Job(function=function, **how)
        if job.reduction not in ("mean", "sum"):
            raise UsageError(f"there is no reduction {job.reduction!r}.", fix="use reduction='mean' or reduction='sum'")

        @functools.wraps(function)
        def step(*args: Any, **kwargs: Any) -> torch.Tensor:
            return self._call(job, (args, kwargs))

        return step

    def shrink(self, parts: int) -> None:
        """Split every batch into at least `parts` from the next call on; must be called on every rank."""
        if parts > self.parts:
            self.parts, self._good, self._grown = parts, 0, False
        self._own = max(self._own, self.parts)

    # One call

    def _call(self, job: Job, call: Call) -> torch.Tensor:
        if self._calls & (self._calls - 1) == 0:  # calls 0, 1, 2, 4, 8, ...
            self._find_parameters()
        self._calls += 1
        reduction = self._reduction if self._reduction is not None and self._reduction.syncs else None
        before = self._state_before(reduction) if self._heals and not self._unsupported and not _capturing() else None
        if before is None:
            loss, _ = self._attempt(job, call, self.parts, None, retry=False)
            assert loss is not None, "an attempt without retry returns the loss or raises"
            return loss
        try:
            with reduction.counting() if reduction is not None else _NO_CONTEXT:
                loss = self._until_it_fits(job, call, before, reduction)
        except BaseException:
            before.abandon()
            raise
        before.join()
        self._after_success(shared=reduction is not None)
        return loss

    def _state_before(self, reduction: SharedReduction | None) -> StateBefore | None:
        parameters = [parameter for reference in self._parameters if (parameter := reference()) is not None]
        views = reduction is not None and reduction.views
        try:
            return StateBefore(parameters, self._statistics, self._losses, reduced=reduction is not None, views=views)
        except Exception as error:  # noqa: BLE001 - the step runs without undo
            self._scope.step_back("noting the state before a step", error)
            return None

    def _until_it_fits(self, job: Job, call: Call, before: StateBefore, reduction: SharedReduction | None) -> torch.Tensor:
        while True:
            parts = self.parts if reduction is not None else max(self.parts, self._own)
            loss, failure = self._attempt(job, call, parts, reduction) if parts >= self._own else (None, None)
            if loss is not None and (reduction is None or not reduction.is_void()):
                return loss
            wanted = 0 if loss is not None else self._own if failure is None else self._after_failure(job, call, parts, failure)
            if reduction is not None:
                if loss is None:
                    self._contribute_nan(reduction, failure, before, parts)
                wanted = reduction.agree(wanted)
                if wanted == 0 and loss is not None:
                    return loss  # non-finite by itself: the guard handles it
            if wanted >= CANNOT:
                raise self._does_not_fit(job, call, failure)
            before.undo()
            self._shrink_to(wanted, failure.shortage.code if failure is not None else "gpu-out-of-memory", reduction)

    def _attempt(
        self, job: Job, call: Call, parts: int, reduction: SharedReduction | None, *, retry: bool = True
    ) -> tuple[torch.Tensor, None] | tuple[None, _Failure]:
        """Forward and backward of every part; only the last one reduces gradients."""
        pieces = job.pieces(call, parts, self._smallest) if parts > 1 else [(call, None)]
        total: torch.Tensor | None = None
        for index, (piece, weight) in enumerate(pieces):
            unsynced, begun = index < len(pieces) - 1, [False]
            try:
                with reduction.part(unsynced=unsynced) if reduction is not None else _NO_CONTEXT:
                    loss = _forward_backward(job, piece, weight, begun)
            except Exception as error:
                shortage = shortage_of(error)
                if shortage is None:
                    raise
                if not (retry and self._scope.policy.heals_from(shortage.code)):
                    self._report_shortage(shortage, job.size(call), parts, "critical", reason=self._unsupported)
                    raise
                _release_frames(error)
                return None, _Failure(error, shortage, unsynced, begun[0])
            total = loss if total is None else total + loss
        assert total is not None
        return total, None

    def _after_failure(self, job: Job, call: Call, parts: int, failure: _Failure) -> int:
        """Free memory; returns the number of parts to try next, or CANNOT."""
        more = job.more_parts(call, parts, self._smallest)
        self._report_shortage(failure.shortage, job.size(call), parts, "critical" if more is None else "warning")
        gc.collect()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
        if more is not None:
            self._own = more
        return CANNOT if more is None else more

    def _contribute_nan(self, reduction: SharedReduction, failure: _Failure | None, before: StateBefore, parts: int) -> None:
        if failure is None:  # this rank has not started, it only needs smaller parts
            reduction.contribute_nan_step(parts=parts)
            return
        reduced = before.touched()
        if not reduction.contribute_nan(unsynced=failure.unsynced, backward_begun=failure.backward_begun, reduced=reduced):
            raise failure.error  # all gradients were reduced: the other ranks have a complete step

    # Between calls

    def _shrink_to(self, parts: int, because: str, reduction: SharedReduction | None, detail: str = "") -> None:
        if self._grown and self._good < _JUST_GROWN:
            self._grow_after = min(4 * self._grow_after, _MAX_GROW_AFTER)
        self._own, self._good, self._grown = max(self._own, parts) if reduction is None else parts, 0, False
        if reduction is not None or self._reduction is None:
            self.parts = parts
        more = {"detail": detail} if detail else {}
        self._write("action", action="shrink-micro-batch", because=because, settings={"parts": parts}, state="done", **more)
        layers = self._batch_norm_layers()
        if layers and not self._warned_batch_norm:
            self._warned_batch_norm = True
            evidence = {"batch_norm_layers": layers, "parts": parts, "meaning": _BATCH_NORM}
            self._write("finding", code=because, severity="info", evidence=evidence)

    @property
    def _smallest(self) -> int:
        """The smallest part in samples: batch normalisation in training needs two."""
        return 2 if self._batch_norm_layers() else 1

    def _batch_norm_layers(self) -> int:
        """The number of layers that take their statistics from the batch."""
        return sum(layer.training for reference in self._batch_norms if (layer := reference()) is not None)

    def _after_success(self, *, shared: bool) -> None:
        self._good += 1
        if self.parts > 1 and self._good >= self._grow_after and (shared or self._reduction is None):
            self.parts = self._own = self.parts // 2
            self._good, self._grown = 0, True
        if self._calls % _CHECK_EVERY == 0 and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self._check_allocator()

    def _check_allocator(self) -> None:
        """Shrink the parts when the allocator had to free its cache to allocate: next time that may fail."""
        retries = int(torch.cuda.memory_stats_as_nested_dict().get("num_alloc_retries", 0))
        new_retries, self._retries = retries - self._retries if self._retries >= 0 else 0, retries
        if new_retries >= _MAX_RETRIES:
            self._own = 2 * max(self.parts, self._own)
            if self._reduction is None:
                detail = f"the allocator had to retry {new_retries} times in {_CHECK_EVERY} steps"
                self._shrink_to(self._own, "gpu-out-of-memory", None, detail)

    def _find_parameters(self) -> None:
        """Find the models and parameters of the run: those passed to `watch`, else the live ones."""
        models = self._scope.models()
        optimizers = [o for reference in self._scope._optimizers if (o := reference()) is not None]
        if not models or not optimizers:
            live = find_live_objects()
            optimizers = optimizers or [o for o in live.optimizers if self._scope.wants(o)]
            models = models or find_roots(live.modules, [p for o in optimizers for g in o.param_groups for p in g["params"]])
        parameters = {id(p): p for model in models for p in model.parameters()}
        parameters.update({id(p): p for o in optimizers for g in o.param_groups for p in g["params"]})
        if [id(reference()) for reference in self._parameters] != list(parameters):
            self._parameters = [weakref.ref(parameter) for parameter in parameters.values()]
            modules = (module for model in models for module in model.modules())
            self._batch_norms = [weakref.ref(module) for module in modules if isinstance(module, _BatchNorm)]
            self._statistics = RunningStatistics(models)
            self._reduction, self._unsupported = reduction_of(models, parameters.values())

    # Reports

    def _does_not_fit(self, job: Job, call: Call, failure: _Failure | None) -> DoesNotFit:
        size = job.size(call)
        if failure is None:
            error = DoesNotFit(
                "another rank ran out of memory and cannot split its batch further.",
                fix="see that rank's entry in the journal; use smaller samples, or a smaller model",
            )
        elif size is None:
            error = DoesNotFit(
                f"memory ran out ({failure.shortage}) and the batch cannot be split into samples.",
                fix="split it yourself: @run.step(split=...), see docs/out_of_memory.md; or use smaller batches",
            )
        else:
            least = "a single sample" if min(size, self._smallest) == 1 else f"only {self._smallest} samples"
            error = DoesNotFit(
                f"memory ran out with {least} of a batch of {size} ({failure.shortage}).",
                fix="make a sample smaller (resolution, sequence length), use mixed precision or activation checkpointing, "
                "a smaller model, or end other processes on the device",
            )
        error.__cause__ = failure.error if failure is not None else None
        return error

    def _report_shortage(self, shortage: Shortage, size: int | None, parts: int, severity: str, *, reason: str = "") -> None:
        evidence = {**shortage.evidence(), "batch_size": size, "parts": parts}
        if reason:
            evidence["not_repeated_because"] = reason
        self._write("finding", code=shortage.code, severity=severity, evidence=evidence)

    def _write(self, kind: str, **fields: Any) -> None:
        from holdfast.inside.ranks import current_rank

        step = self._scope.trainings[-1].step if self._scope.trainings else 0
        with contextlib.suppress(OSError):
            self._scope.run.journal.write(kind, **fields, step=step, rank=current_rank())


def _capturing() -> bool:
    """Whether a CUDA graph is being captured: its step cannot be repeated in parts."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]


def _forward_backward(job: Job, piece: Call, weight: float | None, begun: list[bool]) -> torch.Tensor:
    loss = job.function(*piece[0], **piece[1])
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise UsageError("a step function must return the loss, a tensor with one element.", fix="return the loss only")
    if weight is not None:
        loss = loss * weight
    scaled = loss if job.scaler is None else job.scaler.scale(loss)
    begun[0] = True
    scaled.backward()
    return loss.detach()


def _release_frames(error: BaseException | None) -> None:
    """Drop the frames of an error and its contexts: their locals hold the activations of the failed step."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__context__
