"""One side of a comparison: what a checkpoint holds, or what a model wants."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from holdfast.checkpoints.contents import Trouble
from holdfast.matching.renames import Shape

Stops = Literal["weights", "resume", "use", ""]
"""What cannot be done: put the weights in place; go on with the training; get right answers although all shapes fit; nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What differs. `names` are the weights or settings that it is seen in."""

    kind: str  # head, vocabulary, depth, optimizer, settings … stable, for --json
    words: str
    stops: Stops = ""
    fix: str = ""
    names: tuple[str, ...] = ()

    def as_row(self) -> dict[str, Any]:
        """For --json."""
        return {"kind": self.kind, "words": self.words, "stops": self.stops or None, "fix": self.fix or None, "names": self.names}


def unfit(kind: str, message: str, fix: str, names: Iterable[str] = ()) -> Difference:
    """A difference because of which the weights cannot be put in place."""
    return Difference(kind=kind, words=message, stops="weights", fix=fix, names=tuple(names))


@dataclass(frozen=True, slots=True)
class Labels:
    """How the two sides are called in sentences: "the checkpoint" and "the model", or two file names."""

    one: str
    other: str

    def both(self, left: object, other: object) -> str:
        """`80 in the checkpoint and 3 in the model`."""
        return f"{left} in {self.one} and {other} in {self.other}"


def as_tuple(names: Sequence[str], most: int = 6) -> str:
    """Names as one types them in Python: `("head",)`; of many the first."""
    listed = ", ".join(f'"{name}"' for name in names[:most])
    return f"({listed}, …)" if len(names) > most else f"({listed},)" if len(names) == 1 else f"({listed})"


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


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split(":") for pair in text.split())


_BY_SETTING = _pairs(
    "betas:Adam-like beta2_decay:Adafactor alpha:RMSprop rho:Adadelta lambd:ASGD etas:Rprop lr_decay:Adagrad "
    "line_search_fn:LBFGS momentum:SGD"
)
_BY_STATE = _pairs(
    "exp_avg_sq_row:Adafactor exp_inf:Adamax mu_product:NAdam exp_avg_sq:Adam-like exp_avg_diff:Adan acc_delta:Adadelta "
    "square_avg:RMSprop ax:ASGD sum:Adagrad prev:Rprop momentum_buffer:SGD exp_avg:Lion-like old_dirs:LBFGS"
)


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


@dataclass(frozen=True, slots=True)
class Group:
    """A module or a single weight, with its weights."""

    label: str
    names: tuple[str, ...]
    is_module: bool

    def __str__(self) -> str:
        return f"{self.label} ({len(self.names):,} weights)" if len(self.names) > 1 else self.names[0]


def grouped(names: Iterable[str], among: Collection[str]) -> list[Group]:
    """The largest modules of which every weight is among the names; weights of other modules one by one."""
    chosen = list(names)
    if not chosen:
        return []
    left = set(chosen)
    mixed = {module for name in among if name not in left for module in modules_of(name)}
    groups: dict[str, list[str]] = {}
    for name in chosen:
        whole = next((module for module in modules_of(name)[1:] if module not in mixed), name)
        groups.setdefault(whole, []).append(name)
    return [Group(label, tuple(inside), label not in left) for label, inside in groups.items()]


def modules_of(name: str) -> list[str]:
    """The modules that a weight lies in, the model itself ("") first."""
    parts = name.split(".")[:-1]
    return ["", *(".".join(parts[: length + 1]) for length in range(len(parts)))]
