"""`holdfast.load`: put anybody's checkpoint into a model, or say exactly why it does not fit. Nothing that is inside is run.

    open → is it whole and safe? → does it fit, by which rename? → read every byte once: all finite? → copy, tensor by tensor

Until the copying begins nothing has changed, neither in the model nor in the optimizer.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from holdfast.checkpoints.compare import Comparison, Which, compare
from holdfast.checkpoints.contents import Contents, TensorInfo
from holdfast.checkpoints.formats.open import open_checkpoint
from holdfast.checkpoints.loading.training import Training
from holdfast.checkpoints.loading.weights import Plan, refuse_sharded
from holdfast.checkpoints.matching.difference import Difference, some
from holdfast.checkpoints.matching.from_contents import averaged_weights, own_weights, side_of
from holdfast.checkpoints.matching.from_model import side_of_model
from holdfast.checkpoints.matching.sides import is_extra
from holdfast.checkpoints.tensors import Tensors, pieces_of
from holdfast.checkpoints.verify import verify
from holdfast.errors import BadCheckpoint, DoesNotMatch


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
    found = compare(
        side, side_of_model(model), which=which, leave_out=_listed(leave_out), only=None if only is None else _listed(only),
        part=part, strict=strict,
    )  # fmt: skip
    training = Training(contents.tree, optimizer=optimizer, scheduler=scheduler, scaler=scaler)
    _refuse_unfit(found, training, strict=strict)
    infos = own_weights(contents, part) if which == "model" else averaged_weights(contents)
    plan = Plan(model, infos, found.matched.pairs)
    used = [infos[name] for name in found.matched.pairs] + training.tensors()
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
    return _told(found, training, plan, which, extra)


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
        raise BadCheckpoint(f"{contents.path} is {trouble.state}: {trouble.words}", fix=fix)


def _refuse_unfit(found: Comparison, training: Training, *, strict: bool) -> None:
    if not found.weights_fit:
        raise DoesNotMatch(_problem(found), fix=_fix(found))
    if not found.matched.pairs:
        raise DoesNotMatch(f"Nothing of {found.one.name} would be loaded.", fix="see what `only`, `part` and `leave_out` name")
    problems = list(training.problems)
    if training.absent and strict:
        held = ", ".join(sorted(found.one.holds)) or "nothing else"
        problems.append(
            Difference(
                kind="weights-only",
                words=f"it holds no {' and no '.join(training.absent)} state; it holds {held}",
                fix="load the weights alone and warm up, choose a full checkpoint, or pass strict=False",
            )
        )
    if problems:
        raise DoesNotMatch(f"{found.one.name} cannot restore the training: {problems[0].words}.", fix=problems[0].fix)


def _problem(found: Comparison) -> str:
    """The same words as `holdfast checkpoints compare` has."""
    stopping = [difference for difference in found.differences if difference.stops == "weights"]
    first = f"{found.one.name} {found.verdict}."
    return "\n".join([first, *(f"  also: {difference.words}" for difference in stopping[1:])])


def _fix(found: Comparison) -> str:
    return "\n       ".join([found.fix, *(call for call in found.calls if call.startswith("holdfast."))])


def _verify(contents: Contents, used: list[TensorInfo], *, allow_non_finite: bool) -> None:
    """Read every byte: torn is torn, wherever; numbers that are not finite count only where they are used."""
    verdict = verify(contents)
    for trouble in verdict.troubles:
        if trouble.state in ("torn", "unreadable"):
            raise BadCheckpoint(f"{contents.path} is {trouble.state}: {trouble.words}", fix=trouble.fix)
    names = {info.name for whole in used for info in pieces_of(whole)}
    bad = [one for one in verdict.bad if one.name in names]
    if bad and not allow_non_finite:
        said = some([f"{one.name} ({one.nan:,} NaN, {one.inf:,} Inf of {one.count:,})" for one in bad])
        raise BadCheckpoint(
            f"{contents.path} is not finite: {said}.",
            fix="load an older one (holdfast checkpoints verify tells which are clean), or pass allow_non_finite=True",
        )


def _refuse_changed(contents: Contents) -> None:
    """Someone may have written to it since it was verified."""
    for file in contents.files:
        now = file.path.stat()
        if (now.st_size, now.st_mtime) != (file.size, file.modified):
            raise BadCheckpoint(f"{file.path} was changed while it was loaded.", fix="load it again when the save is done")


def _told(found: Comparison, training: Training, plan: Plan, which: Which, extra: list[str]) -> Loaded:
    matched, one = found.matched, found.one
    told = [difference.words for difference in found.differences if difference.stops != "resume"]
    for difference in found.differences:
        if difference.stops == "use":
            warnings.warn(f"{one.name} was loaded, but {difference.words}", stacklevel=3)
    if extra:
        words = f"extra state is left as it was, for the model's own load_state_dict() to load: {some(extra)}"
        warnings.warn(f"{one.name} was loaded, but {words}", stacklevel=3)
        told.append(words)
    filled = set(matched.pairs.values())
    return Loaded(
        path=Path(one.name),
        restored=("weights" if which == "model" else "ema", *training.kinds),
        weights=len(plan),
        renamed=matched.rename.words,
        step=one.step,
        epoch=one.epoch,
        metrics=dict(one.metrics),
        settings=dict(one.settings),
        absent=tuple(training.absent),
        untouched=tuple(name for name in found.other.weights if name not in filled),
        unused=tuple(name for name in matched.rename.names if name not in matched.pairs),
        notes=(*matched.notes, *told),
    )
