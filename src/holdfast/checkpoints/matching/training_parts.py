"""Find the states of optimizers, schedulers and gradient scalers in a checkpoint's tree, by what they look like.

    optimizer   {"state": {0: {…}}, "param_groups": [{"lr": …, "params": [0, 1]}]}
    scheduler   {"last_epoch": …, "_step_count" | "base_lrs" | "_last_lr" | "num_bad_epochs": …}
    scaler      {"scale": …, "growth_factor": …}

So it does not matter whether they are called `optimizer`, `optimizer_state_dict`, `optim`, or lie in a list as Lightning's do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from holdfast.checkpoints.contents import TensorInfo
from holdfast.checkpoints.matching.sides import OptimizerState

_DEEPEST = 4
_OF_SCHEDULERS = ("_step_count", "base_lrs", "_last_lr", "num_bad_epochs")
SAME_SHAPE = (  # what optimizers keep for each number of a parameter
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "acc_delta", "exp_inf", "sum", "prev",
)  # fmt: skip


def optimizers_in(tree: Any) -> list[dict[str, Any]]:
    """The states of its optimizers, in order."""
    return list(_found(tree, is_optimizer))


def schedulers_in(tree: Any) -> list[dict[str, Any]]:
    """The states of its schedulers, in order."""
    return list(_found(tree, lambda one: "last_epoch" in one and any(key in one for key in _OF_SCHEDULERS)))


def scalers_in(tree: Any) -> list[dict[str, Any]]:
    """The states of its gradient scalers, in order."""
    return list(_found(tree, lambda one: "scale" in one and "growth_factor" in one))


def is_optimizer(state: Mapping[Any, Any]) -> bool:
    """Whether this is what an optimizer's `state_dict()` gives."""
    groups = state.get("param_groups")
    return (
        isinstance(state.get("state"), dict)
        and isinstance(groups, list)
        and all(isinstance(group, dict) and isinstance(group.get("params"), list) for group in groups)
    )


def describe_optimizer(state: Mapping[str, Any]) -> OptimizerState:
    """An optimizer's state in short; the tensors in it may be real ones or told ones."""
    groups, states = state["param_groups"], [one for one in state["state"].values() if isinstance(one, Mapping)]
    shapes = [
        tuple(one[key].shape)
        for one in states
        for key in [next((key for key in SAME_SHAPE if hasattr(one.get(key), "shape")), None)]
        if key is not None
    ]
    return OptimizerState(
        groups=tuple(len(group["params"]) for group in groups),
        settings=tuple({key: value for key, value in group.items() if key != "params"} for group in groups),
        state_keys=frozenset(str(key) for one in states for key in one),
        filled=len(states),
        shapes=tuple(shapes),
    )


def _found(tree: Any, wanted: Callable[[Mapping[Any, Any]], bool], depth: int = _DEEPEST) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        if wanted(tree):
            yield tree
        elif depth and not _is_state_dict(tree):
            for value in tree.values():
                yield from _found(value, wanted, depth - 1)
    elif isinstance(tree, (list, tuple)) and depth:
        for value in tree[:64]:
            yield from _found(value, wanted, depth - 1)


def _is_state_dict(tree: Mapping[Any, Any]) -> bool:
    return bool(tree) and isinstance(next(iter(tree.values())), TensorInfo)
