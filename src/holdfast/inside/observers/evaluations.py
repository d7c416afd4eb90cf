"""Capture validation losses: what torch's loss functions return between `model.eval()` and `model.train()`. Write metrics.

Only in that phase are the functions of `torch.nn.functional` observed (the loss modules call the same functions), and only
results that need no gradient count. The functions stay the same objects (see taps/loss_functions.py), so a script may pickle,
copy or script them meanwhile.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional

from holdfast.inside.shield import Shield
from holdfast.inside.taps.loss_functions import Call, ObservedFunctions

if TYPE_CHECKING:
    from holdfast.inside.gradients.device_reader import Transfer
    from holdfast.inside.training import Training

_LOSSES = (
    *("binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss", "cross_entropy", "ctc_loss"),
    *("gaussian_nll_loss", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss", "margin_ranking_loss", "mse_loss"),
    *("nll_loss", "poisson_nll_loss", "smooth_l1_loss", "soft_margin_loss", "triplet_margin_loss"),
)

# Not public: a torch version without them counts as not tracing
_FUNCTORCH: Callable[[Any], Any] = getattr(getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", lambda _: False)
_TRACING: Callable[[], Any] = getattr(torch._C, "_is_tracing", lambda: False)
_DISPATCH_MODES: Callable[[], Any] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)


class Logged(NamedTuple):
    """A metric that the script gave to `run.log`, or the loss of an evaluation."""

    name: str
    value: float | torch.Tensor
    split: str
    step: int | None = None
    samples: int | None = None


class EvaluationPhase:
    """One evaluation: since `model.eval()`, or the first batch that is drawn without gradients, until training continues."""

    def __init__(self, since: float, on_trouble: Callable[[str, BaseException], None]) -> None:
        self.since = since
        self.of: Any = None  # the training whose model is in evaluation mode
        self._sums: dict[str, tuple[Any, int]] = {}  # of each loss, over how many samples; on a GPU the sum stays there
        self._thread = threading.get_ident()
        self._functions = ObservedFunctions()
        self._on_loss = Shield(on_trouble)(self._add_loss)
        self._depth = 0

    def observe(self, training: Any) -> None:
        """Start to observe the loss functions: the model of this training is in evaluation mode."""
        if self.of is None:
            self.of = training
            for name in _LOSSES:
                self._functions.observe(getattr(functional, name, None), partial(self._observed, name))

    def close(self) -> list[Logged]:
        """Stop observing and return the means: `loss` if only one function was called, else each by its name."""
        self._functions.restore()
        sums, self._sums = self._sums, {}
        names = ["loss"] if len(sums) == 1 else list(sums)
        means = zip(names, sums.values(), strict=True)
        return [Logged(name, total / samples, "val", samples=samples) for name, (total, samples) in means if samples]

    def _observed(self, name: str, original: Callable[..., Any]) -> Call:
        def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
                return original(*args, **kwargs)
            self._depth += 1
            try:
                result = original(*args, **kwargs)
            finally:
                self._depth -= 1
            if self._depth == 0 and isinstance(result, torch.Tensor):
                self._on_loss(name, result, args, kwargs)
            return result

        return call

    def _add_loss(self, name: str, result: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _is_traced(result) or result.dim() or result.requires_grad or result.is_meta:
            return
        target = args[1] if len(args) > 1 else kwargs.get("target", args[0] if args else None)
        samples = int(target.shape[0]) if isinstance(target, torch.Tensor) and target.dim() else 1
        value: Any = result.item() if result.is_cpu else result.detach().float()
        total, count = self._sums.get(name, (0.0, 0))
        self._sums[name] = total + (value if kwargs.get("reduction") == "sum" else value * samples), count + samples


def _is_traced(result: torch.Tensor) -> bool:
    """Whether the tensor is a placeholder (`vmap`, a trace, a CUDA graph), or a dispatch mode would see our operations."""
    if _TRACING() or _FUNCTORCH(result) or _DISPATCH_MODES():
        return True
    return result.is_cuda and torch.cuda.is_current_stream_capturing()


def write_logged(training: Training, metric: Logged) -> None:
    """Write a metric; a value on a GPU is written when it arrives, without waiting."""
    step, epoch = training.step if metric.step is None else metric.step, training.loader.epoch

    def write(value: float) -> None:
        training.step_table.evaluation(step, epoch, metric.name, metric.split, value, metric.samples)
        if not math.isfinite(value) and metric.split != "train":  # normalisation hides a huge weight while the model trains
            training.budget.look_closer(training.step + 1)

    def arrived(transfer: Transfer) -> None:
        if transfer.rest is not None:
            write(float(transfer.rest[0]))

    value = metric.value.detach() if isinstance(metric.value, torch.Tensor) else metric.value
    if isinstance(value, torch.Tensor) and not value.is_cpu and training.reader is not None:
        training.reader.send(None, [value], arrived)
    else:
        write(float(value))
