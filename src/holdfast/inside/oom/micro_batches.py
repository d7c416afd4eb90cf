"""`@run.step`: a training step that survives running out of memory.

    @run.step
    def step(batch):                      # from batch to loss
        return loss_of(model(batch["x"]), batch["y"])

    loss = step(batch)                    # forward and backward, in as many parts as memory asks for

One call:  keep the state before -> forward and backward, part after part -> done
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
_GROW_AFTER, _GROW_AFTER_AT_MOST = 200, 25_600  # good steps before fewer parts are tried; four times as many after a failure
_JUST_GROWN = 20  # steps; running out so soon after growing means that growing was wrong
_LOOK_EVERY, _RETRIES_TOLERATED = 8, 2  # steps between two looks at the allocator; retries in that time
_PLAINLY = contextlib.nullcontext()
_BATCH_NORM = (
    "Batch normalisation takes its statistics from each part, not from the whole batch: the gradient is that of the smaller "
    "batches. Group or layer normalisation, or frozen statistics, do not depend on the split."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A step function and how its loss adds up."""

    function: Callable[..., Any]
    scaler: Any = None
    reduction: str = "mean"
    weight: Callable[..., Any] | None = None
    split: Callable[[Any, int], Any] | None = None  # (batch, parts) -> [(part, samples), ...]

    def size(self, call: Call) -> int | None:
        """The number of samples in the arguments of a call; None where they cannot be told apart."""
        args, kwargs = call
        if self.split is not None:
            return int(sum(samples for _, samples in self.split(args[0], 1)))
        return size_of(args[0] if len(args) == 1 and not kwargs else {**dict(enumerate(args)), **kwargs})

    def more_parts(self, call: Call, parts: int, smallest: int) -> int | None:
        """How many parts come after `parts` that were too large; None if parts of `smallest` samples were too large already."""
        if self.split is not None:
            more = len(self.split(call[0][0], 2 * parts))
            return more if more > len(self.split(call[0][0], parts)) else None
        most = (self.size(call) or 0) // smallest
        return min(2 * parts, most) if parts < most else None

    def pieces(self, call: Call, parts: int, smallest: int) -> list[tuple[Call, float | None]]:
        """The arguments of each part, and its share in the loss of the whole; None where the loss is taken as it is."""
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
    """Where in a step memory ran out. The error is kept without the frames that held activations."""

    error: BaseException
    shortage: Shortage
    unsynced: bool
    backward_begun: bool


class MicroBatches:
    """Into how many parts the batches of a run are split, and the calls that find it out."""

    def __init__(self, scope: Scope, losses: Losses) -> None:
        self._scope, self._losses = scope, losses
        self._heals = any(scope.policy.heals_from(f"{where}-out-of-memory") for where in ("gpu", "host"))
        self.parts = 1  # agreed by all ranks
        self._own = 1  # what this rank needs; more than `parts` until the others have heard of it
        self._good, self._grow_after, self._grown = 0, _GROW_AFTER, False
        self._calls, self._retries, self._told = 0, -1, set[str]()
        self._parameters: list[weakref.ref[torch.Tensor]] = []
        self._batch_norms: list[weakref.ref[nn.Module]] = []
        self._statistics = RunningStatistics(())
        self._reduction: SharedReduction | None = None
        self._why_not = ""

    def step(self, function: Callable[..., Any], **how: Any) -> Callable[..., torch.Tensor]:
        """The step function as the loop calls it: it runs backward too, and gives the detached loss of the whole batch."""
        job = Job(function=function, **how)
        if job.reduction not in ("mean", "sum"):
            raise UsageError(f"reduction {job.reduction!r} is not known.", fix="use reduction='mean' or reduction='sum'")

        @functools.wraps(function)
        def step(*args: Any, **kwargs: Any) -> torch.Tensor:
            return self._call(job, (args, kwargs))

        return step

    def shrink(self, parts: int) -> None:
        """Split every batch into at least so many parts from the next call on; the caller sees to it on every rank."""
        if parts > self.parts:
            self.parts, self._good, self._grown = parts, 0, False
        self._own = max(self._own, self.parts)

    # One call

    def _call(self, job: Job, call: Call) -> torch.Tensor:
        if self._calls & (self._calls - 1) == 0:  # less and less often: 0, 1, 2, 4, 8, ...
            self._learn()
        self._calls += 1
        reduction = self._reduction if self._reduction is not None and self._reduction.syncs else None
        before = self._state_before(reduction) if self._heals and not self._why_not and not _capturing() else None
        if before is None:
            loss, _ = self._attempt(job, call, self.parts, None, mends=False)
            assert loss is not None, "an attempt that is not mended gives the loss or raises"
            return loss
        try:
            with reduction.counting() if reduction is not None else _PLAINLY:
                loss = self._until_it_fits(job, call, before, reduction)
        except BaseException:
            before.give_up()
            raise
        before.join()
        self._went_well(shared=reduction is not None)
        return loss

    def _state_before(self, reduction: SharedReduction | None) -> StateBefore | None:
        parameters = [parameter for reference in self._parameters if (parameter := reference()) is not None]
        views = reduction is not None and reduction.views
        try:
            return StateBefore(parameters, self._statistics, self._losses, reduced=reduction is not None, views=views)
        except Exception as error:  # noqa: BLE001 - the step goes on without a way back
            self._scope.step_back("keeping the state before a step", error)
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
                    self._give_nothing(reduction, failure, before, parts)
                wanted = reduction.agree(wanted)
                if wanted == 0 and loss is not None:
                    return loss  # not finite by itself: no affair of ours
            if wanted >= CANNOT:
                raise self._does_not_fit(job, call, failure)
            before.undo()
            self._shrink_to(wanted, failure.shortage.code if failure is not None else "gpu-out-of-memory", reduction)

    def _attempt(
        self, job: Job, call: Call, parts: int, reduction: SharedReduction | None, *, mends: bool = True
    ) -> tuple[torch.Tensor, None] | tuple[None, _Failure]:
        """Forward and backward of every part; all but the last without reducing gradients."""
        pieces = job.pieces(call, parts, self._smallest) if parts > 1 else [(call, None)]
        total: torch.Tensor | None = None
        for number, (piece, share) in enumerate(pieces):
            unsynced, begun = number < len(pieces) - 1, [False]
            try:
                with reduction.part(unsynced=unsynced) if reduction is not None else _PLAINLY:
                    loss = _forward_backward(job, piece, share, begun)
            except Exception as error:
                shortage = shortage_of(error)
                if shortage is None:
                    raise
                if not (mends and self._scope.policy.heals_from(shortage.code)):
                    self._tell_shortage(shortage, job.size(call), parts, "critical", why_not=self._why_not)
                    raise
                _let_go(error)
                return None, _Failure(error, shortage, unsynced, begun[0])
            total = loss if total is None else total + loss
        assert total is not None
        return total, None

    def _after_failure(self, job: Job, call: Call, parts: int, failure: _Failure) -> int:
        """Free what can be freed; the number of parts to try next, or CANNOT."""
        more = job.more_parts(call, parts, self._smallest)
        self._tell_shortage(failure.shortage, job.size(call), parts, "critical" if more is None else "warning")
        gc.collect()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
        if more is not None:
            self._own = more
        return CANNOT if more is None else more

    def _give_nothing(self, reduction: SharedReduction, failure: _Failure | None, before: StateBefore, parts: int) -> None:
        if failure is None:  # nothing was begun: this rank only asks for smaller parts
            reduction.give_nothing_at_all(parts=parts)
            return
        touched = before.touched()
        if not reduction.give_nothing(unsynced=failure.unsynced, backward_begun=failure.backward_begun, touched=touched):
            raise failure.error  # every gradient was given already: the others hold a complete step

    # Between calls

    def _shrink_to(self, parts: int, because: str, reduction: SharedReduction | None, detail: str = "") -> None:
        if self._grown and self._good < _JUST_GROWN:
            self._grow_after = min(4 * self._grow_after, _GROW_AFTER_AT_MOST)
        self._own, self._good, self._grown = max(self._own, parts) if reduction is None else parts, 0, False
        if reduction is not None or self._reduction is None:
            self.parts = parts
        self._tell_action(parts, because, detail)
        layers = self._batch_norm_layers()
        if layers and "batch norm" not in self._told:
            self._told.add("batch norm")
            evidence = {"batch_norm_layers": layers, "parts": parts, "meaning": _BATCH_NORM}
            self._write("finding", code=because, severity="info", evidence=evidence)

    @property
    def _smallest(self) -> int:
        """How many samples a part must have: a batch normalisation in training cannot work on one."""
        return 2 if self._batch_norm_layers() else 1

    def _batch_norm_layers(self) -> int:
        """How many layers take their statistics from the batch."""
        return sum(layer.training for reference in self._batch_norms if (layer := reference()) is not None)

    def _went_well(self, *, shared: bool) -> None:
        self._good += 1
        if self.parts > 1 and self._good >= self._grow_after and (shared or self._reduction is None):
            self.parts = self._own = self.parts // 2
            self._good, self._grown = 0, True
        if self._calls % _LOOK_EVERY == 0 and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self._look_at_the_allocator()

    def _look_at_the_allocator(self) -> None:
        """Ask for smaller parts when the allocator had to give memory back to get some: the next time it may not find any."""
        retries = int(torch.cuda.memory_stats_as_nested_dict().get("num_alloc_retries", 0))
        risen, self._retries = retries - self._retries if self._retries >= 0 else 0, retries
        if risen >= _RETRIES_TOLERATED:
            self._own = 2 * max(self.parts, self._own)
            if self._reduction is None:
                self._shrink_to(
                    self._own, "gpu-out-of-memory", None, f"the allocator had to retry {risen} times in {_LOOK_EVERY} steps"
                )

    def _learn(self) -> None:
        """Find the models and parameters of the run: those named to `watch`, else those that are alive."""
        models = self._scope.models()
        optimizers = [o for reference in self._scope._optimizers if (o := reference()) is not None]
        if not models or not optimizers:
            living = find_live_objects()
            optimizers = optimizers or [o for o in living.optimizers if self._scope.wants(o)]
            models = models or find_roots(living.modules, [p for o in optimizers for g in o.param_groups for p in g["params"]])
        found = {id(p): p for model in models for p in model.parameters()}
        found.update({id(p): p for o in optimizers for g in o.param_groups for p in g["params"]})
        if [id(reference()) for reference in self._parameters] != list(found):
            self._parameters = [weakref.ref(parameter) for parameter in found.values()]
            modules = (module for model in models for module in model.modules())
            self._batch_norms = [weakref.ref(module) for module in modules if isinstance(module, _BatchNorm)]
            self._statistics = RunningStatistics(models)
            self._reduction, self._why_not = reduction_of(models, found.values())

    # Words

    def _does_not_fit(self, job: Job, call: Call, failure: _Failure | None) -> DoesNotFit:
        size = job.size(call)
        if failure is None:
            made = DoesNotFit(
                "another rank ran out of memory and cannot split its batch further.",
                fix="see its entry in the journal; use smaller samples, or a smaller model",
            )
        elif size is None:
            made = DoesNotFit(
                f"memory ran out ({failure.shortage}) and the batch cannot be cut into samples.",
                fix="say how: @run.step(split=...), see docs/out_of_memory.md; or draw smaller batches",
            )
        else:
            least = "a single sample" if min(size, self._smallest) == 1 else f"only {self._smallest} samples"
            made = DoesNotFit(
                f"memory ran out with {least} of a batch of {size} ({failure.shortage}).",
                fix="make a sample smaller (resolution, sequence length), use mixed precision or activation checkpointing, "
                "a smaller model, or end other processes on the device",
            )
        made.__cause__ = failure.error if failure is not None else None
        return made

    def _tell_shortage(self, shortage: Shortage, size: int | None, parts: int, severity: str, *, why_not: str = "") -> None:
        evidence = {**shortage.evidence(), "batch_size": size, "parts": parts}
        if why_not:
            evidence["not_repeated_because"] = why_not
        self._write("finding", code=shortage.code, severity=severity, evidence=evidence)

    def _tell_action(self, parts: int, because: str, detail: str) -> None:
        words = {"detail": detail} if detail else {}
        self._write("action", action="shrink-micro-batch", because=because, settings={"parts": parts}, state="done", **words)

    def _write(self, kind: str, **fields: Any) -> None:
        from holdfast.inside.ranks import current_rank

        step = self._scope.trainings[-1].step if self._scope.trainings else 0
        with contextlib.suppress(OSError):
            self._scope.run.journal.write(kind, **fields, step=step, rank=current_rank())


def _capturing() -> bool:
    """Whether a CUDA graph is being recorded: what it holds cannot be repeated in parts."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]


def _forward_backward(job: Job, piece: Call, share: float | None, begun: list[bool]) -> torch.Tensor:
    loss = job.function(*piece[0], **piece[1])
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise UsageError("a step function must give the loss, a tensor with one number.", fix="return the loss only")
    if share is not None:
        loss = loss * share
    given = loss if job.scaler is None else job.scaler.scale(loss)
    begun[0] = True
    given.backward()
    return loss.detach()


def _let_go(error: BaseException | None) -> None:
    """Drop the frames of an error and of those it came from: their locals hold the activations of the failed step."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__context__
