"""Put back optimizers, schedulers and gradient scalers: checked before anything changes, and undone if one of them refuses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from holdfast.checkpoints.contents import TensorInfo
from holdfast.checkpoints.matching.difference import Difference, Labels
from holdfast.checkpoints.matching.optimizers import optimizer_differences
from holdfast.checkpoints.matching.sides import OptimizerState
from holdfast.checkpoints.matching.training_parts import SAME_SHAPE, describe_optimizer, optimizers_in, scalers_in, schedulers_in

_FINDERS: dict[str, Callable[[Any], list[dict[str, Any]]]] = {
    "optimizer": optimizers_in,
    "scheduler": schedulers_in,
    "scaler": scalers_in,
}


class Training:
    """What is to be put back beside the weights, each with its state in the file."""

    def __init__(self, tree: Any, **asked: Any) -> None:
        """`asked` are the optimizers, schedulers and scalers: None, one, or several in the order in which they were saved."""
        self._tasks: list[tuple[str, Any, dict[str, Any]]] = []
        self.problems: list[Difference] = []
        self.absent: list[str] = []
        for kind, holders in asked.items():
            given = [] if holders is None else list(holders) if isinstance(holders, Sequence) else [holders]
            states = _FINDERS[kind](tree) if given else []
            if given and not states:
                self.absent.append(kind)
            elif len(given) != len(states):
                self.problems.append(_other_number(kind, len(states), len(given)))
            else:
                self._tasks += [(kind, holder, state) for holder, state in zip(given, states, strict=True)]
        for kind, holder, state in self._tasks:
            if kind == "optimizer":
                self.problems += _optimizer_problems(holder, state)

    @property
    def kinds(self) -> list[str]:
        """What will be put back."""
        return list(dict.fromkeys(kind for kind, _, _ in self._tasks))

    def tensors(self) -> list[TensorInfo]:
        """All tensors in the states that will be put back."""
        return [info for _, _, state in self._tasks for info in _tensors(state)]

    def put_back(self, made: Callable[[Any], Any]) -> Callable[[], None]:
        """Give each its state, by its own `load_state_dict`; `made` turns told tensors into real ones. Returns what undoes it."""
        ready = [(holder, made(state)) for _, holder, state in self._tasks]
        undo: list[Callable[[], None]] = []

        def undo_all() -> None:
            for step in reversed(undo):
                step()

        try:
            for holder, state in ready:
                before = holder.state_dict() if isinstance(holder, torch.optim.Optimizer) else copy.deepcopy(holder.state_dict())
                undo.append(lambda holder=holder, before=before: holder.load_state_dict(before))  # type: ignore[misc]
                holder.load_state_dict(state)
        except BaseException:
            undo_all()
            raise
        return undo_all


def _tensors(tree: Any) -> list[TensorInfo]:
    if isinstance(tree, TensorInfo):
        return [tree]
    inside = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return [info for value in inside for info in _tensors(value)]


def _other_number(kind: str, saved: int, given: int) -> Difference:
    words = f"the checkpoint holds {saved} {kind}s, and {given} {'is' if given == 1 else 'are'} to be restored"
    return Difference(kind=kind, words=words, stops="resume", fix=f"give all of them, in the order of saving: {kind}=[…]")


def _optimizer_problems(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> list[Difference]:
    labels = Labels("the checkpoint", "the optimizer")
    found = [one for one in optimizer_differences(describe_optimizer(state), _described(optimizer), labels) if one.stops]
    return found or _shape_problems(optimizer, state)


def _described(optimizer: torch.optim.Optimizer) -> OptimizerState:
    groups = optimizer.param_groups
    return OptimizerState(
        groups=tuple(len(group["params"]) for group in groups),
        settings=tuple({key: value for key, value in group.items() if key != "params"} for group in groups),
        state_keys=frozenset(),
        filled=0,
    )


def _shape_problems(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> list[Difference]:
    """Moments that are not those of their parameter; torch itself would find out at the next step, or never."""
    saved = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in zip(saved, parameters, strict=True):
        for key, value in state["state"].get(number, {}).items():
            if key in SAME_SHAPE and hasattr(value, "shape") and tuple(value.shape) != tuple(parameter.shape):
                words = (
                    f"the optimizer's state belongs to other parameters: {key} of number {number} is {list(value.shape)} in the "
                    f"checkpoint, the parameter {list(parameter.shape)}"
                )
                fix = "give it the parameters in the order in which they were saved, or load the weights only"
                return [Difference(kind="optimizer", words=words, stops="resume", fix=fix)]
    return []
