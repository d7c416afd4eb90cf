"""Whether the state of an optimizer can be put into another one, and what differs in how it is set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from holdfast.checkpoints.matching.difference import Difference, Labels, count, some
from holdfast.checkpoints.matching.settings import same, show
from holdfast.checkpoints.matching.sides import OptimizerState, Side

_TOLD = ("lr", "initial_lr", "weight_decay", "betas", "momentum", "eps", "nesterov", "amsgrad")
_FULL = ("optimizer", "scheduler", "scaler", "rng", "loader")


def training_differences(one: Side, other: Side, labels: Labels) -> Iterator[Difference]:
    """What the other side has for going on with a training, and this one lacks or has otherwise."""
    yield from _holdings(one, other, labels)
    if one.optimizers and other.optimizers:
        if len(one.optimizers) != len(other.optimizers):
            said = labels.both(len(one.optimizers), len(other.optimizers))
            yield _stopping(f"another number of optimizers: {said}", "create the optimizers that were saved")
        for here, there in zip(one.optimizers, other.optimizers, strict=False):
            yield from optimizer_differences(here, there, labels)
    elif one.optimizers and other.is_model:
        yield from _against_model(one, other)


def _holdings(one: Side, other: Side, labels: Labels) -> Iterator[Difference]:
    lacking = [part for part in _FULL if part in other.holds and part not in one.holds]
    if "optimizer" in lacking:
        words = f"{labels.one} holds no {', '.join(lacking)}: no training can go on from it as it was"
        fix = "choose a full checkpoint, or start a new training from its weights, with warm-up"
        yield Difference(kind="weights-only", words=words, stops="resume", fix=fix)
    elif lacking:
        words = f"{labels.one} holds no {', '.join(lacking)}, and {labels.other} does: a resumed training goes on otherwise there"
        yield Difference(kind="less-state", words=words)


def optimizer_differences(here: OptimizerState, there: OptimizerState, labels: Labels) -> Iterator[Difference]:
    """What differs between two optimizers; whatever stops a resume comes alone."""
    if here.family != there.family or (here.kind != there.kind and here.filled and there.filled):
        said = labels.both(here.kind, there.kind)
        yield _stopping(
            f"another kind of optimizer: {said}", f"create the one that was saved ({here.kind}), or leave its state out"
        )
    elif len(here.groups) != len(there.groups):
        said = labels.both(count(len(here.groups), "group"), len(there.groups))
        yield _stopping(
            f"other parameter groups: {said}", "create the optimizer with the groups that were saved, or leave its state out"
        )
    elif here.groups != there.groups:
        said = labels.both(list(here.groups), list(there.groups))
        yield _stopping(
            f"other parameters are optimised: groups of {said}",
            "freeze and group the parameters as they were, or leave the state out",
        )
    else:
        yield from _group_settings(here, there, labels)


def _group_settings(here: OptimizerState, there: OptimizerState, labels: Labels) -> Iterator[Difference]:
    """What is set otherwise; of several groups the first that differs is told."""
    said: dict[str, str] = {}
    for key in _TOLD:
        for one, other in zip(here.settings, there.settings, strict=True):
            if key in one and key in other and not same(one[key], other[key]):
                said.setdefault(key, f"{key} {labels.both(show(one[key]), show(other[key]))}")
    if said:
        words = f"the optimizer is set otherwise: {', '.join(said.values())}; what is loaded wins"
        yield Difference(kind="optimizer-setting", words=words, names=tuple(said))


def _against_model(one: Side, other: Side) -> Iterator[Difference]:
    """The moments have the shapes of the parameters that they belong to; groups may order these as they like."""
    parameters = Counter(
        {weight.same_as: weight.shape for weight in other.weights.values() if weight.is_buffer is False}.values()
    )
    total = sum(parameters.values())
    for state in one.optimizers:
        strange = [list(shape) for shape in Counter(state.shapes) - parameters]
        if strange:
            words = f"the optimizer's state belongs to other parameters, such as {some(strange)}: load the weights without it"
            yield Difference(kind="optimizer", words=words)
        elif state.parameters < total:
            words = f"the optimizer trained {state.parameters:,} of the model's {total:,} parameters: the rest was frozen"
            yield Difference(kind="optimizer", words=words)


def _stopping(words: str, fix: str) -> Difference:
    return Difference(kind="optimizer", words=words, stops="resume", fix=fix)
