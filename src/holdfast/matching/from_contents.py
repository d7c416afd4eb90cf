"""What a checkpoint holds, as one side of a comparison."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from holdfast.checkpoints.contents import Contents, TensorInfo
from holdfast.checkpoints.parts import MODEL_KEYS, Part, is_module, parts_of
from holdfast.checkpoints.summary import averages_of, state_dicts, summarise, tensors_of, weights_part
from holdfast.matching.sides import OptimizerState, Side, Weight, is_extra
from holdfast.matching.weights import covers

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
    return list(_found(tree, lambda state: "last_epoch" in state and any(key in state for key in _OF_SCHEDULERS)))


def scalers_in(tree: Any) -> list[dict[str, Any]]:
    """The states of its gradient scalers, in order."""
    return list(_found(tree, lambda state: "scale" in state and "growth_factor" in state))


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
    groups, states = state["param_groups"], [entry for entry in state["state"].values() if isinstance(entry, Mapping)]
    shapes = [
        tuple(entry[key].shape)
        for entry in states
        for key in [next((key for key in SAME_SHAPE if hasattr(entry.get(key), "shape")), None)]
        if key is not None
    ]
    return OptimizerState(
        groups=tuple(len(group["params"]) for group in groups),
        settings=tuple({key: value for key, value in group.items() if key != "params"} for group in groups),
        state_keys=frozenset(str(key) for entry in states for key in entry),
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


_AVERAGED = re.compile(r"(^|_)(ema|averages?|averaged|swa)(_|$)")


def side_of(contents: Contents, name: str | None = None, part: str = "") -> Side:
    """A side made from an opened checkpoint; no tensor is read but those of a single number."""
    summary = summarise(contents)
    own, chosen = own_weights(contents, part), weights_part(contents)
    return Side(
        name=name or str(contents.path),
        path=contents.path,
        weights=_weights(own),
        weights_at=_way_to(chosen, own),
        averages=_weights(averaged_weights(contents)),
        optimizers=tuple(describe_optimizer(state) for state in optimizers_in(contents.tree)),
        holds=summary.holds,
        settings=summary.settings,
        versions=summary.versions,
        format=contents.format,
        is_plain=not contents.needs_code and not contents.refused,
        step=summary.step,
        epoch=summary.epoch,
        metrics=summary.metrics,
        troubles=tuple(contents.troubles),
    )


def own_weights(contents: Contents, part: str = "") -> dict[str, TensorInfo]:
    """The model's own weights, and never averaged ones in their place.

    Where a file holds several models and none is called the model, all of them, with their keys before the names: which one is
    meant is for the names to tell, or for `part`.
    """
    chosen = weights_part(contents)
    if chosen is None or chosen.role != "weights":
        return {}
    own = _named(chosen.value)
    is_model = bool(chosen.path) and str(chosen.path[0]) in MODEL_KEYS
    if any(covers(part, name) for name in own) if part else is_model or not chosen.path:
        return own
    models = [model for top in parts_of(contents.tree) if top.role == "weights" for model in state_dicts(top)]
    if len(models) < 2:
        return own
    return {".".join((*map(str, model.path), name)): info for model in models for name, info in _named(model.value).items()}


def _named(value: Any) -> dict[str, TensorInfo]:
    """A state dict with the second names of tied weights, which safetensors files keep among their notes."""
    tensors = {name: info for name, info in tensors_of(value).items() if not is_extra(name)}
    notes = value.get("__metadata__") if isinstance(value, dict) else None
    tied = notes.items() if isinstance(notes, dict) else ()
    return {**tensors, **{name: tensors[kept] for name, kept in tied if name not in tensors and kept in tensors}}


def averaged_weights(contents: Contents) -> dict[str, TensorInfo]:
    """The averaged weights: a part of their own, or beside the others in the model's state dict."""
    return averages_of(contents) or {
        name: info for name, info in own_weights(contents).items() if _AVERAGED.search(name.partition(".")[0])
    }


def _weights(infos: Mapping[str, TensorInfo]) -> dict[str, Weight]:
    return {name: Weight(info.shape, info.dtype, None, info.place) for name, info in infos.items()}


def _way_to(part: Part | None, own: Mapping[str, TensorInfo]) -> tuple[str, ...] | None:
    """The keys that lead to the model's state dict; None where it is no plain dict in the file."""
    if part is None or is_module(part.value) or not all(isinstance(key, str) for key in part.path):
        return None
    if own.keys() != part.value.keys():
        return None  # there is more in it than weights, or there are several models
    return tuple(part.path)
