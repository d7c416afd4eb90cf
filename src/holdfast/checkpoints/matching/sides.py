"""One side of a comparison: what a checkpoint holds, or what a model wants."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.checkpoints.contents import Trouble
from holdfast.checkpoints.renames import Shape


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of a state dict."""

    shape: Shape
    dtype: str
    is_buffer: bool | None = None  # None: a file does not tell
    same_as: Hashable = None  # equal for names of one and the same tensor (tied weights)

    @property
    def count(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


def is_extra(name: str) -> bool:
    """Whether this is a module's own state, which only its `set_extra_state` understands."""
    return name.rpartition(".")[2] == "_extra_state"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerState:
    """An optimizer as its state dict tells it."""

    groups: tuple[int, ...]  # parameters in each group
    settings: tuple[Mapping[str, Any], ...]  # of each group, without its parameters
    state_keys: frozenset[str]  # of each parameter: exp_avg, momentum_buffer …
    filled: int  # parameters that have a state
    shapes: tuple[Shape, ...] = ()  # of the moments, in order

    @property
    def parameters(self) -> int:
        """How many it optimises."""
        return sum(self.groups)

    @property
    def kind(self) -> str:
        """Its kind as far as its state tells."""
        for keys, kinds in ((self.state_keys, _BY_STATE), (self.settings[0] if self.settings else {}, _BY_SETTING)):
            for key, kind in kinds.items():
                if key in keys:
                    return kind
        return "unknown"

    @property
    def family(self) -> frozenset[str]:
        """The settings that only some kinds have: where these differ, one kind cannot stand for the other."""
        return frozenset(key for key in _BY_SETTING if self.settings and key in self.settings[0])


_BY_SETTING = {
    "betas": "Adam-like",
    "beta2_decay": "Adafactor",
    "alpha": "RMSprop",
    "rho": "Adadelta",
    "lambd": "ASGD",
    "etas": "Rprop",
    "lr_decay": "Adagrad",
    "line_search_fn": "LBFGS",
    "momentum": "SGD",
}
_BY_STATE = {
    "exp_avg_sq_row": "Adafactor",
    "exp_inf": "Adamax",
    "mu_product": "NAdam",
    "exp_avg_sq": "Adam-like",
    "exp_avg_diff": "Adan",
    "acc_delta": "Adadelta",
    "square_avg": "RMSprop",
    "ax": "ASGD",
    "sum": "Adagrad",
    "prev": "Rprop",
    "momentum_buffer": "SGD",
    "exp_avg": "Lion-like",
    "old_dirs": "LBFGS",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What there is to compare. A model has `rebuilt` buffers too: those that it makes itself and does not save."""

    name: str  # the path, or what was typed for the model
    path: Path | None = None  # None: a model
    weights: Mapping[str, Weight] = field(default_factory=dict)
    weights_at: tuple[str, ...] | None = ()  # keys that lead to them in the file; None: no simple ones do
    averages: Mapping[str, Weight] = field(default_factory=dict)
    rebuilt: Mapping[str, Shape] = field(default_factory=dict)
    optimizers: tuple[OptimizerState, ...] = ()
    holds: frozenset[str] = frozenset()  # weights, optimizer, scheduler, scaler, rng, loader, ema, settings
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    format: str = ""
    is_plain: bool = True  # torch.load(weights_only=True) reads it
    step: int | None = None
    epoch: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    troubles: tuple[Trouble, ...] = ()  # what is wrong with the file itself

    @property
    def is_model(self) -> bool:
        """Whether it is a model and not a checkpoint."""
        return self.path is None
