"""`holdfast.load`: put anybody's checkpoint into a model, or say exactly why it does not fit. Nothing that is inside is run.

    open → is it whole and safe? → does it fit, by which rename? → read every byte once: all finite? → copy, tensor by tensor

Until the copying begins nothing has changed, neither in the model nor in the optimizer.
"""

from __future__ import annotations

import copy
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.checkpoints.contents import Contents, TensorInfo
from holdfast.checkpoints.formats.files import few
from holdfast.checkpoints.formats.open import open_checkpoint
from holdfast.checkpoints.parts import tensors_in
from holdfast.checkpoints.tensors import Tensors, pieces_of
from holdfast.checkpoints.verify import has_changed, verify
from holdfast.errors import BadCheckpoint, DoesNotMatch, StorageError, UsageError
from holdfast.matching.compare import Comparison, Which, compare
from holdfast.matching.from_contents import (
    SAME_SHAPE,
    averaged_weights,
    describe_optimizer,
    optimizers_in,
    own_weights,
    scalers_in,
    schedulers_in,
    side_of,
)
from holdfast.matching.from_model import side_of_model, state_of
from holdfast.matching.settings import optimizer_differences
from holdfast.matching.sides import Difference, Labels, is_extra


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What was loaded, and what was not."""

    path: Path
    restored: tuple[str, ...]  # weights (or ema), optimizer, scheduler, scaler
    weights: int  # tensors that were filled
    renamed: str = ""  # how names were changed: "removing the prefix module."
    step: int | None = None
    epoch: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    absent: tuple[str, ...] = ()  # what was asked for and is not in the file
    untouched: tuple[str, ...] = ()  # weights of the model that stay as they were
    unused: tuple[str, ...] = ()  # weights of the file that the model did not take
    notes: tuple[str, ...] = ()


def load(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    which: Which = "model",
    leave_out: str | Sequence[str] = (),
    only: str | Sequence[str] | None = None,
    part: str = "",
    strict: bool = True,
    allow_non_finite: bool = False,
    allow_unsafe: bool = False,
) -> Loaded:
    """Load a checkpoint of any format into a model, which keeps its device and its dtype.

    Prefixes that wrappers put before names are seen and taken off or put on; everything else that does not fit is refused with
    `DoesNotMatch`, which says what differs and what to do. `leave_out` and `only` name parts of the model, `part` a part of the
    file; `which="ema"` takes the averaged weights. Several optimizers or schedulers are given as a list. Without `strict` it does
    not matter what only one side has. A file that is torn, unsafe or not finite is refused with `BadCheckpoint`.
    """
    refuse_sharded(model)
    contents = open_checkpoint(Path(path))
    _refuse_bad(contents, allow_unsafe=allow_unsafe)
    side = replace(side_of(contents, os.fspath(path), part), troubles=())
    comparison = compare(
        side, side_of_model(model), which=which, leave_out=_listed(leave_out), only=None if only is None else _listed(only),
        part=part, strict=strict,
    )  # fmt: skip
    training = Training(contents.tree, optimizer=optimizer, scheduler=scheduler, scaler=scaler)
    _refuse_unfit(comparison, training, strict=strict)
    infos = own_weights(contents, part) if which == "model" else averaged_weights(contents)
    plan = Plan(model, infos, comparison.matched.pairs)
    used = [infos[name] for name in comparison.matched.pairs] + training.tensors()
    _verify(contents, used, allow_non_finite=allow_non_finite)
    with Tensors(contents) as tensors:
        plan.check(tensors)
        undo = training.put_back(tensors.made)
        try:
            _refuse_changed(contents)
            plan.carry_out(tensors)
        except BaseException:
            undo()
            raise
    extra = [name for name in model.state_dict() if is_extra(name)]
    return _loaded(comparison, training, plan, which, extra)


def _listed(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _refuse_bad(contents: Contents, *, allow_unsafe: bool) -> None:
    """Whatever its indexes already tell: it is torn, unreadable, or wants to call what no checkpoint needs."""
    for trouble in contents.troubles:
        if trouble.state == "non-finite" or (trouble.state == "unsafe" and allow_unsafe):
            continue
        fix = trouble.fix
        if trouble.state == "unsafe":
            fix += "; if you know where it comes from, allow_unsafe=True reads its numbers and runs nothing of it"
        raise BadCheckpoint(f"{contents.path} is {trouble.state}: {trouble.text}", fix=fix)


def _refuse_unfit(comparison: Comparison, training: Training, *, strict: bool) -> None:
    if not comparison.weights_fit:
        raise DoesNotMatch(_problem(comparison), fix=_fix(comparison))
    if not comparison.matched.pairs:
        raise DoesNotMatch(
            f"Nothing of {comparison.checkpoint.name} would be loaded.", fix="see what `only`, `part` and `leave_out` name"
        )
    problems = list(training.problems)
    if training.absent and strict:
        held = ", ".join(sorted(comparison.checkpoint.holds)) or "nothing else"
        problems.append(
            Difference(
                kind="weights-only",
                words=f"it holds no {' and no '.join(training.absent)} state; it holds {held}",
                fix="load the weights alone and warm up, choose a full checkpoint, or pass strict=False",
            )
        )
    if problems:
        raise DoesNotMatch(f"{comparison.checkpoint.name} cannot restore the training: {problems[0].words}.", fix=problems[0].fix)


def _problem(comparison: Comparison) -> str:
    """The same words as `holdfast checkpoints compare` has."""
    stopping = [difference for difference in comparison.differences if difference.stops == "weights"]
    first = f"{comparison.checkpoint.name} {comparison.verdict}."
    return "\n".join([first, *(f"  also: {difference.words}" for difference in stopping[1:])])


def _fix(comparison: Comparison) -> str:
    return "\n       ".join([comparison.fix, *(call for call in comparison.calls if call.startswith("holdfast."))])


def _verify(contents: Contents, used: list[TensorInfo], *, allow_non_finite: bool) -> None:
    """Read every byte: torn is torn, wherever; numbers that are not finite count only where they are used."""
    verdict = verify(contents)
    for trouble in verdict.troubles:
        if trouble.state in ("torn", "unreadable"):
            raise BadCheckpoint(f"{contents.path} is {trouble.state}: {trouble.text}", fix=trouble.fix)
    names = {info.name for whole in used for info in pieces_of(whole)}
    bad = [tensor for tensor in verdict.bad if tensor.name in names]
    if bad and not allow_non_finite:
        tensors = few([f"{tensor.name} ({tensor.nan:,} NaN, {tensor.inf:,} Inf of {tensor.count:,})" for tensor in bad])
        raise BadCheckpoint(
            f"{contents.path} is not finite: {tensors}.",
            fix="load an older one (holdfast checkpoints verify shows which are clean), or pass allow_non_finite=True",
        )


def _refuse_changed(contents: Contents) -> None:
    """Someone may have written to it since it was verified."""
    for file in contents.files:
        if has_changed(file):
            raise BadCheckpoint(f"{file.path} was changed while it was loaded.", fix="load it again when the save is done")


def _loaded(comparison: Comparison, training: Training, plan: Plan, which: Which, extra: list[str]) -> Loaded:
    matched, side = comparison.matched, comparison.checkpoint
    differences = [difference.words for difference in comparison.differences if difference.stops != "resume"]
    for difference in comparison.differences:
        if difference.stops == "use":
            warnings.warn(f"{side.name} was loaded, but {difference.words}", stacklevel=3)
    if extra:
        message = f"extra state is left as it was, for the model's own load_state_dict() to load: {few(extra)}"
        warnings.warn(f"{side.name} was loaded, but {message}", stacklevel=3)
        differences.append(message)
    filled = set(matched.pairs.values())
    return Loaded(
        path=Path(side.name),
        restored=("weights" if which == "model" else "ema", *training.kinds),
        weights=len(plan),
        renamed=matched.rename.words,
        step=side.step,
        epoch=side.epoch,
        metrics=dict(side.metrics),
        settings=dict(side.settings),
        absent=tuple(training.absent),
        untouched=tuple(name for name in comparison.other.weights if name not in filled),
        unused=tuple(name for name in matched.rename.names if name not in matched.pairs),
        notes=(*matched.notes, *differences),
    )


_NARROW = (torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)


def refuse_sharded(model: nn.Module) -> None:
    """A model of which this rank holds only a part is restored by all ranks together."""
    distributed = sys.modules.get("torch.distributed.fsdp")
    fsdp = getattr(distributed, "FullyShardedDataParallel", ())
    tensors = (*model.parameters(), *model.buffers())
    if any(hasattr(tensor, "_local_tensor") for tensor in tensors) or any(isinstance(part, fsdp) for part in model.modules()):
        raise UsageError(
            "The model is sharded (FSDP, DTensor): this rank holds only a part of its weights.",
            fix="restore it on all ranks with CheckpointStore.restore, or load the file before the model is sharded",
        )


class Plan:
    """Which tensor of the file goes into which of the model's."""

    def __init__(self, model: nn.Module, infos: Mapping[str, TensorInfo], pairs: Mapping[str, str]) -> None:
        """`pairs` are names of the file with names of the model, all of equal shape."""
        targets = state_of(model)
        _refuse_foreign(model, {there: targets[there] for there in pairs.values()})
        self._moves: dict[int, tuple[TensorInfo, torch.Tensor, str]] = {}
        self._twice: list[tuple[TensorInfo, TensorInfo, str]] = []
        for name, there in pairs.items():
            target = targets[there]
            first = self._moves.setdefault(id(target), (infos[name], target, there))
            if first[2] != there and first[0].place != infos[name].place:
                self._twice.append((first[0], infos[name], f"{first[2]} and {there}"))

    def __len__(self) -> int:
        return len(self._moves)

    def check(self, tensors: Tensors) -> None:
        """Raises DoesNotMatch where the model ties what the file has twice, and differently, or a number would overflow."""
        for first, other, names in self._twice:
            if not torch.equal(tensors.tensor(first), tensors.tensor(other)):
                raise DoesNotMatch(
                    f"The model has {names} as one tensor; the file has two, and they differ.",
                    fix="build the model without tying them (tie_word_embeddings=False), or leave one of them out",
                )
        for info, target, name in self._moves.values():
            kind = str(target.dtype).removeprefix("torch.")
            if target.dtype not in _NARROW or info.dtype == kind:
                continue
            if not all(_fits(piece, target.dtype) for piece in tensors.pieces(info)):
                raise DoesNotMatch(
                    f"{name} holds values too large for {kind}.", fix=f"build the model in {info.dtype} or bfloat16"
                )

    def carry_out(self, tensors: Tensors) -> None:
        """Copy, tensor by tensor. Raises BadCheckpoint; only here, where a disk fails between two readings, is it too late."""
        with torch.no_grad():
            for number, (info, target, name) in enumerate(self._moves.values()):
                try:
                    tensors.copy(info, target)
                except StorageError as error:
                    raise BadCheckpoint(
                        f"{error.problem} The model has {number} of its {len(self)} weights, up to {name}: do not use it.",
                        fix="load this one again, or another, into it",
                    ) from error


def _fits(piece: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether what is finite stays finite."""
    return bool((piece.to(dtype).to(torch.float32).isfinite() | ~piece.isfinite()).all())


def _refuse_foreign(model: nn.Module, targets: Mapping[str, torch.Tensor]) -> None:
    """Every target must be the model's own: a state dict of copies would take the weights and change nothing."""
    for name, tensor in targets.items():
        if tensor.is_meta:
            raise UsageError(
                f"{name} is on the meta device: it has no memory.",
                fix='give the model memory first: model.to_empty(device="cpu"), or build it without torch.device("meta")',
            )
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    foreign = [name for name, tensor in targets.items() if tensor.numel() and tensor.untyped_storage().data_ptr() not in own]
    if foreign:
        raise UsageError(
            f"The model's state_dict() gives copies of its weights, such as {foreign[0]}: filling them would change nothing.",
            fix="use the model's own load_state_dict()",
        )


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
            objects = [] if holders is None else list(holders) if isinstance(holders, Sequence) else [holders]
            states = _FINDERS[kind](tree) if objects else []
            if objects and not states:
                self.absent.append(kind)
            elif len(objects) != len(states):
                self.problems.append(_other_number(kind, len(states), len(objects)))
            else:
                self._tasks += [(kind, holder, state) for holder, state in zip(objects, states, strict=True)]
        for kind, holder, state in self._tasks:
            if kind == "optimizer":
                self.problems += _optimizer_problems(holder, state)

    @property
    def kinds(self) -> list[str]:
        """What will be put back."""
        return list(dict.fromkeys(kind for kind, _, _ in self._tasks))

    def tensors(self) -> list[TensorInfo]:
        """All tensors in the states that will be put back."""
        return [info for _, _, state in self._tasks for info in tensors_in(state)]

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


def _other_number(kind: str, saved: int, wanted: int) -> Difference:
    message = f"the checkpoint holds {saved} {kind}s, and {wanted} {'is' if wanted == 1 else 'are'} to be restored"
    return Difference(kind=kind, words=message, stops="resume", fix=f"give all of them, in the order of saving: {kind}=[…]")


def _optimizer_problems(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> list[Difference]:
    labels = Labels("the checkpoint", "the optimizer")
    problems = [
        difference
        for difference in optimizer_differences(describe_optimizer(state), describe_optimizer(optimizer.state_dict()), labels)
        if difference.stops
    ]
    return problems or _shape_problems(optimizer, state)


def _shape_problems(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> list[Difference]:
    """Moments that are not those of their parameter; torch itself would find out at the next step, or never."""
    saved = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in zip(saved, parameters, strict=True):
        for key, value in state["state"].get(number, {}).items():
            if key in SAME_SHAPE and hasattr(value, "shape") and tuple(value.shape) != tuple(parameter.shape):
                message = (
                    f"the optimizer's state is of different parameters: {key} of number {number} is {list(value.shape)} in the "
                    f"checkpoint, the parameter {list(parameter.shape)}"
                )
                fix = "give it the parameters in the order in which they were saved, or load the weights only"
                return [Difference(kind="optimizer", words=message, stops="resume", fix=fix)]
    return []
