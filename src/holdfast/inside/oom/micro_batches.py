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
from torch.nn.parallel import DistributedDataParallel

from holdfast.errors import DoesNotFit, UsageError
from holdfast.inside.discovery import find_live_objects, find_roots
from holdfast.inside.guard.batchnorm import RunningStatistics
from holdfast.inside.oom.shortage import Shortage, shortage_of
from holdfast.inside.oom.splitting import cut, size_of
from holdfast.inside.ranks import current_rank, is_sharded, world_size
from holdfast.state.parameters import parameters_of

if TYPE_CHECKING:
    from holdfast.inside.observers.losses import Losses
    from holdfast.inside.scope import Scope

Call = tuple[tuple[Any, ...], dict[str, Any]]  # positional and named arguments
_GROW_AFTER, _MAX_GROW_AFTER = 200, 25_600  # good steps before fewer parts are tried; 4x after each failure
_JUST_GROWN = 20  # steps; memory that runs out so soon means that growing was a mistake
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

    def cuts(self, call: Call, parts: int, smallest: int = 1) -> list[tuple[Call, int]]:
        """The arguments of each part with its number of samples; none if the batch cannot be split."""
        args, kwargs = call
        if self.split is not None:
            return [(((part, *args[1:]), kwargs), samples) for part, samples in self.split(args[0], parts)]
        batch: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        size = size_of(args[0] if len(batch) == 1 and args else batch)
        if size is None:
            return []
        pieces = cut(batch, size, min(parts, max(1, size // smallest)))
        return [((tuple(map(piece.pop, range(len(args)))), piece), samples) for piece, samples in pieces]

    def size(self, call: Call) -> int | None:
        """The number of samples in a call's arguments; None if unknown."""
        return sum(samples for _, samples in self.cuts(call, 1)) or None

    def more_parts(self, call: Call, parts: int, smallest: int) -> int | None:
        """The next number of parts to try; None if the parts cannot be smaller."""
        more = len(self.cuts(call, 2 * parts, smallest))
        return more if more > len(self.cuts(call, parts, smallest)) else None

    def pieces(self, call: Call, parts: int, smallest: int) -> list[tuple[Call, float | None]]:
        """The arguments of each part, and the weight of its loss; None for an unweighted sum."""
        cuts = self.cuts(call, parts, smallest) if parts > 1 else []
        if len(cuts) < 2:
            return [(call, None)]
        if self.reduction == "sum":
            return [(piece, None) for piece, _ in cuts]
        weights = [float(samples if self.weight is None else self.weight(*piece[0], **piece[1])) for piece, samples in cuts]
        total = sum(weights)
        if not total > 0.0:
            return [(piece, 1.0 / len(cuts)) for piece, _ in cuts]
        return [(piece, weight / total) for (piece, _), weight in zip(cuts, weights, strict=True) if weight]


class StateBefore:
    """Everything that a forward and backward pass changes, from before the step.

    A healthy step copies almost nothing. Gradients from before the call (accumulation) are set aside, the call fills fresh
    ones, and one addition joins them: bit for bit the same sums as adding in place, for the memory of one more set of gradients.
    """

    def __init__(self, parameters: list[torch.Tensor], statistics: RunningStatistics, losses: Any) -> None:
        self._parameters = parameters
        self._earlier = [(p, p.grad) for p in parameters if p.grad is not None]
        generators = [torch.default_generator]
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
        self._random = [(generator, generator.get_state()) for generator in generators]
        self._statistics = statistics
        if statistics:
            statistics.keep()
        self._losses = losses
        self._losses_before = {**vars(losses), "_on_device": list(losses._on_device)}
        self._set_aside()

    def undo(self) -> None:
        """Restore everything, ready for another attempt."""
        self.abandon()
        for generator, state in self._random:
            generator.set_state(state)
        self._set_aside()

    def abandon(self) -> None:
        """Restore the gradients, statistics and recorded losses from before the step."""
        for parameter in self._parameters:
            parameter.grad = None
        for parameter, gradient in self._earlier:
            parameter.grad = gradient
        if self._statistics:
            self._statistics.put_back()
        vars(self._losses).update({**self._losses_before, "_on_device": list(self._losses_before["_on_device"])})

    def join(self) -> None:
        """Add the earlier gradients to those of the finished step."""
        earlier, added = [], []
        with torch.no_grad():
            for parameter, old in self._earlier:
                new = parameter.grad
                if new is None:
                    parameter.grad = old
                elif old.layout == new.layout == torch.strided:
                    earlier.append(old)
                    added.append(new)
                    parameter.grad = old
                else:
                    parameter.grad = old + new
            if earlier:
                torch._foreach_add_(earlier, added)

    def _set_aside(self) -> None:
        for parameter, _ in self._earlier:
            parameter.grad = None


class MicroBatches:
    """Splits the batches of a run into as many parts as memory needs."""

    def __init__(self, scope: Scope, losses: Losses) -> None:
        self._scope, self._losses = scope, losses
        self._heals = any(scope.policy.heals_from(f"{where}-out-of-memory") for where in ("gpu", "host"))
        self.parts = 1
        self._good, self._grow_after, self._grown = 0, _GROW_AFTER, False
        self._calls = 0
        self._parameters: list[weakref.ref[torch.Tensor]] = []
        self._batch_norms: list[weakref.ref[nn.Module]] = []
        self._statistics = RunningStatistics(())
        self._ddp: list[weakref.ref[DistributedDataParallel]] = []
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

    # One call

    def _call(self, job: Job, call: Call) -> torch.Tensor:
        if self._calls & (self._calls - 1) == 0:  # calls 0, 1, 2, 4, 8, ...
            self._find_parameters()
        self._calls += 1
        before = self._state_before() if self._heals and not self._unsupported and not _capturing() else None
        try:
            loss = self._until_it_fits(job, call, before)
        except BaseException:
            if before is not None:
                before.abandon()
            raise
        if before is not None:
            before.join()
            self._after_success()
        return loss

    def _state_before(self) -> StateBefore | None:
        parameters = [parameter for reference in self._parameters if (parameter := reference()) is not None]
        try:
            return StateBefore(parameters, self._statistics, self._losses)
        except Exception as error:  # noqa: BLE001 - the step runs without undo
            self._scope.step_back("noting the state before a step", error)
            return None

    def _until_it_fits(self, job: Job, call: Call, before: StateBefore | None) -> torch.Tensor:
        """Repeat the step in smaller parts until it fits; without a state `before` it is not repeated."""
        while True:
            try:
                return self._attempt(job, call)
            except Exception as error:
                shortage = shortage_of(error)
                if shortage is None:
                    raise
                heals = before is not None and self._scope.policy.heals_from(shortage.code)
                more = job.more_parts(call, self.parts, self._smallest) if heals else None
                self._report_shortage(shortage, job.size(call), "critical" if more is None else "warning")
                if before is None or not heals:
                    raise
                _release_frames(error)
                failure = error
            gc.collect()
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.empty_cache()
            if more is None:
                raise self._does_not_fit(job, call, shortage) from failure
            before.undo()
            self._shrink_to(more, shortage.code)

    def _attempt(self, job: Job, call: Call) -> torch.Tensor:
        """Forward and backward of every part; under DDP only the last one reduces gradients."""
        *first, last = job.pieces(call, self.parts, self._smallest)
        with contextlib.ExitStack() as unsynced:
            for model in [model for reference in self._ddp if first and (model := reference()) is not None]:
                unsynced.enter_context(model.no_sync())
            losses = [_forward_backward(job, piece, weight) for piece, weight in first]
        losses.append(_forward_backward(job, *last))
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    # Between calls

    def _shrink_to(self, parts: int, because: str) -> None:
        if self._grown and self._good < _JUST_GROWN:
            self._grow_after = min(4 * self._grow_after, _MAX_GROW_AFTER)
        self.parts, self._good, self._grown = parts, 0, False
        note = {"note": _BATCH_NORM} if self._smallest > 1 else {}
        self._write("action", action="shrink-micro-batch", because=because, settings={"parts": parts}, state="done", **note)

    @property
    def _smallest(self) -> int:
        """The smallest part in samples: batch normalisation in training, which takes statistics from the batch, needs two."""
        return 2 if any(layer.training for reference in self._batch_norms if (layer := reference()) is not None) else 1

    def _after_success(self) -> None:
        self._good += 1
        if self.parts > 1 and self._good >= self._grow_after:
            self.parts, self._good, self._grown = self.parts // 2, 0, True

    def _find_parameters(self) -> None:
        """Find the models and parameters of the run: those passed to `watch`, else the live ones."""
        models = self._scope.models()
        optimizers = [o for reference in self._scope._optimizers if (o := reference()) is not None]
        if not models or not optimizers:
            live = find_live_objects()
            optimizers = optimizers or [o for o in live.optimizers if self._scope.wants(o)]
            models = models or find_roots(live.modules, [p for o in optimizers for p in parameters_of(o)])
        parameters: dict[int, torch.Tensor] = {id(p): p for model in models for p in model.parameters()}
        parameters.update({id(p): p for o in optimizers for p in parameters_of(o)})
        if [id(reference()) for reference in self._parameters] != list(parameters):
            self._parameters = [weakref.ref(parameter) for parameter in parameters.values()]
            modules = [module for model in models for module in model.modules()]
            self._batch_norms = [weakref.ref(module) for module in modules if isinstance(module, _BatchNorm)]
            self._statistics = RunningStatistics(models)
            ddp = [module for module in find_live_objects().modules if isinstance(module, DistributedDataParallel)]
            wrappers = [module for module in ddp if any(id(parameter) in parameters for parameter in module.parameters())]
            self._ddp, self._unsupported = [weakref.ref(wrapper) for wrapper in wrappers], ""
            synced = any(isinstance(module, nn.SyncBatchNorm) for module in modules)
            if world_size() > 1 and (wrappers or synced or any(map(is_sharded, parameters.values()))):
                self._unsupported = "the other ranks wait for this one in the middle of the step"

    # Reports

    def _does_not_fit(self, job: Job, call: Call, shortage: Shortage) -> DoesNotFit:
        size = job.size(call)
        if size is None:
            return DoesNotFit(
                f"memory ran out ({shortage}) and the batch cannot be split into samples.",
                fix="split it yourself: @run.step(split=...), see docs/run.md; or use smaller batches",
            )
        least = "a single sample" if min(size, self._smallest) == 1 else f"only {self._smallest} samples"
        return DoesNotFit(
            f"memory ran out with {least} of a batch of {size} ({shortage}).",
            fix="make a sample smaller (resolution, sequence length), use mixed precision or activation checkpointing, "
            "a smaller model, or end other processes on the device",
        )

    def _report_shortage(self, shortage: Shortage, size: int | None, severity: str) -> None:
        evidence = {**shortage.evidence(), "batch_size": size, "parts": self.parts}
        if self._unsupported:
            evidence["not_repeated_because"] = self._unsupported
        self._write("finding", code=shortage.code, severity=severity, evidence=evidence)

    def _write(self, kind: str, **fields: Any) -> None:
        step = self._scope.trainings[-1].step if self._scope.trainings else 0
        with contextlib.suppress(OSError):
            self._scope.run.journal.write(kind, **fields, step=step, rank=current_rank())


def _capturing() -> bool:
    """Whether a CUDA graph is being captured: its step cannot be repeated in parts."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]


def _forward_backward(job: Job, piece: Call, weight: float | None) -> torch.Tensor:
    loss = job.function(*piece[0], **piece[1])
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise UsageError("a step function must return the loss, a tensor with one element.", fix="return the loss only")
    if weight is not None:
        loss = loss * weight
    (loss if job.scaler is None else job.scaler.scale(loss)).backward()
    return loss.detach()


def _release_frames(error: BaseException | None) -> None:
    """Drop the frames of an error and its contexts: their locals hold the activations of the failed step."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__context__
