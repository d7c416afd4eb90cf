"""Validation losses, seen without help: what the usual loss functions give between `model.eval()` and `model.train()`.

Only in that phase, and only for results that need no gradient, are the functions of `torch.nn.functional` wrapped; the loss
modules call the same functions. In training they are the originals.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from types import FunctionType
from typing import Any

import torch
from torch.nn import functional

from holdfast.inside.door.frames import is_users
from holdfast.inside.patches import Patches

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


@cache
def _imported_by_name() -> tuple[tuple[Any, str, str], ...]:
    """Where the script's own modules hold these functions by name (`from torch.nn.functional import cross_entropy`)."""
    known = {getattr(functional, name): name for name in _LOSSES}
    found = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and is_users(getattr(module, "__name__", ""), file) and "-packages" not in file:
            names = vars(module).items()
            found += [(module, own, known[thing]) for own, thing in names if isinstance(thing, FunctionType) and thing in known]
    return tuple(found)


class EvaluationPhase:
    """One stretch of evaluation: open at `model.eval()`, closed when training goes on."""

    def __init__(self) -> None:
        self.sums: dict[str, LossSum] = {}
        self._patches = Patches()
        self._depth = 0

    def open(self) -> None:
        """Begin to listen to the loss functions."""
        by_name = _imported_by_name()  # before the originals are replaced
        for name in _LOSSES:
            self._patches.replace(functional, name, partial(self._listening, name))
        for module, known_as, name in by_name:
            self._patches.replace(module, known_as, partial(self._listening, name))

    def close(self) -> dict[str, LossSum]:
        """Stop listening and give what was heard: `loss` where there is one kind, otherwise each by its function's name."""
        self._patches.restore()
        heard, self.sums = self.sums, {}
        return {"loss": next(iter(heard.values()))} if len(heard) == 1 else heard

    def _listening(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def loss_function(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            self._depth += 1
            try:
                result = original(*args, **kwargs)
            finally:
                self._depth -= 1
            if self._depth == 0 and isinstance(result, torch.Tensor) and result.dim() == 0 and not result.requires_grad:
                self._hear(name, result, args, kwargs)
            return result

        return loss_function

    def _hear(self, name: str, result: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        target = args[1] if len(args) > 1 else kwargs.get("target", args[0] if args else None)
        samples = int(target.shape[0]) if isinstance(target, torch.Tensor) and target.dim() else 1
        mean = result / max(samples, 1) if kwargs.get("reduction") == "sum" else result
        self.sums.setdefault(name, LossSum(0.0, 0)).add(mean, samples)
