"""Validation losses, seen without help: what the usual loss functions give between `model.eval()` and `model.train()`.

Only in that phase are the functions of `torch.nn.functional` heard, and only results that need no gradient; the loss modules
call the same functions. They stay the same objects (see overhearing.py), so a script may save, copy and script them meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from holdfast.inside.shield import Shield
from holdfast.inside.taps.loss_functions import Call, ObservedFunctions

_LOSSES = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "ctc_loss",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "margin_ranking_loss",
    "mse_loss",
    "nll_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
)

# Torch's own, and not public: a version without them has nothing to ask
_FUNCTORCH: Callable[[Any], Any] = getattr(getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", lambda _: False)
_TRACING: Callable[[], Any] = getattr(torch._C, "_is_tracing", lambda: False)
_DISPATCH_MODES: Callable[[], Any] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)


@dataclass(slots=True)
class LossSum:
    """Sum of a loss over the samples of a phase; on a GPU the sum stays there."""

    total: Any
    samples: int

    def add(self, mean: torch.Tensor, samples: int) -> None:
        """Take in the mean loss of one batch."""
        value = mean.detach()
        self.total = self.total + (float(value) if value.device.type == "cpu" else value.float()) * samples
        self.samples += samples


class EvaluationPhase:
    """One stretch of evaluation: open at `model.eval()`, closed when training goes on."""

    def __init__(self, of: Any, on_trouble: Callable[[str, BaseException], None]) -> None:
        self.of = of  # the training whose model is evaluated
        self._thread = threading.get_ident()
        self.sums: dict[str, LossSum] = {}
        self._overheard = ObservedFunctions()
        self._note = Shield(on_trouble)(self._hear)
        self._depth = 0

    def open(self) -> None:
        """Begin to listen to the loss functions."""
        for name in _LOSSES:
            self._overheard.hear(getattr(functional, name, None), partial(self._listening, name))

    def close(self) -> dict[str, LossSum]:
        """Stop listening and give what was heard: `loss` where there is one kind, otherwise each by its function's name."""
        self._overheard.stop()
        heard, self.sums = self.sums, {}
        return {"loss": next(iter(heard.values()))} if len(heard) == 1 else heard

    def _listening(self, name: str, original: Callable[..., Any]) -> Call:
        def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
                return original(*args, **kwargs)
            self._depth += 1
            try:
                result = original(*args, **kwargs)
            finally:
                self._depth -= 1
            if self._depth == 0 and isinstance(result, torch.Tensor):
                self._note(name, result, args, kwargs)
            return result

        return call

    def _hear(self, name: str, result: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _is_traced(result) or result.dim() or result.requires_grad or result.is_meta:
            return
        target = args[1] if len(args) > 1 else kwargs.get("target", args[0] if args else None)
        samples = int(target.shape[0]) if isinstance(target, torch.Tensor) and target.dim() else 1
        mean = result / max(samples, 1) if kwargs.get("reduction") == "sum" else result
        self.sums.setdefault(name, LossSum(0.0, 0)).add(mean, samples)


def _is_traced(result: torch.Tensor) -> bool:
    """Whether it stands for something else (`vmap`, a trace, a CUDA graph), or someone sees every operation, ours too."""
    if _TRACING() or _FUNCTORCH(result) or _DISPATCH_MODES():
        return True
    return result.is_cuda and torch.cuda.is_current_stream_capturing()
