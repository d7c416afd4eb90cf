"""The state of a training: everything that has to be put back for it to go on as if it had never left that point.

    models        parameters and buffers, all of them; of sharded ones this rank's part
    optimizers    their state for each parameter, and the settings of their groups
    schedulers, gradient scalers, averaged copies of the weights, random number generators

Nothing is kept alive: all are held by weak references. Values are put back into the tensors that are there, so that captured
graphs, compiled code and other holders of the same tensors see them.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from holdfast.inside.ranks import is_sharded
from holdfast.inside.snapshots import reading
from holdfast.inside.snapshots.companions import find_companions, innermost
from holdfast.inside.snapshots.host_copy import Source
from holdfast.inside.snapshots.plain import Ref
from holdfast.inside.snapshots.randomness import read_randomness, set_randomness
from holdfast.inside.snapshots.reading import Counters, Optimizer, Tree
from holdfast.inside.snapshots.restoring import Plan


@dataclass(frozen=True, slots=True)
class Reading:
    """The state at one moment: the training's own tensors, and a tree of plain values in which they are numbered."""

    sources: list[Source]
    tree: Tree

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(source.tensor.nbytes for source in self.sources)


class TrainingState:
    """What makes up one training."""

    def __init__(
        self,
        models: Iterable[nn.Module],
        optimizers: Iterable[Optimizer],
        *,
        schedulers: Iterable[Any] = (),
        scalers: Iterable[Any] = (),
        averages: Iterable[Any] = (),
        counters: Iterable[Counters] = (),
        unseen: Iterable[str] = (),
        whole: bool = False,
    ) -> None:
        """With `whole` frozen parameters are never left out, however large they are."""
        self._models, self._optimizers = _weak(models), _weak(_with_inner(optimizers))
        self._schedulers, self._scalers, self._averages = _weak(schedulers), _weak(scalers), _weak(averages)
        self._counters, self._unseen, self._whole = list(counters), list(unseen), whole

    @classmethod
    def discover(
        cls, models: Iterable[nn.Module], optimizers: Iterable[Optimizer], extra_emas: Iterable[Any] = (), *, whole: bool = False
    ) -> TrainingState:
        """Find the schedulers, scalers and averages that belong to these models and optimizers.

        Averages are recognised by type; `extra_emas` names others: modules, or anything with `state_dict()` and
        `load_state_dict()`.
        """
        models, optimizers, averages = list(models), [innermost(optimizer) for optimizer in optimizers], list(extra_emas)
        found = find_companions(models, _with_inner(optimizers))
        known = {id(part) for root in (*models, *averages) if isinstance(root, nn.Module) for part in root.modules()}
        averages += [average for average in found.averages if id(average) not in known]
        return cls(
            models,
            optimizers,
            schedulers=found.schedulers,
            scalers=found.scalers,
            averages=averages,
            counters=[Counters(holder) for holder in found.counters],
            unseen=found.unseen,
            whole=whole,
        )

    def missing(self) -> list[str]:
        """In words, what will not be restored, each with the line to add. A learning rate set by hand needs nothing."""
        words = list(self._unseen)
        if not self._models():
            words.append(
                "The model was not found, only the optimizer's parameters: buffers (BatchNorm's statistics) are not restored. "
                "To have them restored: holdfast.watch(model, optimizer)."
            )
        left_out = self._left_out()
        if left_out:
            size = sum(parameter.nbytes for parameter in left_out) / 1e9
            words.append(f"{size:.1f} GB of frozen parameters are not copied, as nothing trains them: they stay as they are.")
        return words

    def alive(self) -> bool:
        """Whether there is still something to restore."""
        return bool(self._models() or self._optimizers())

    def models(self) -> list[nn.Module]:
        """The models, as far as they are alive."""
        return list(self._models())

    def optimizers(self) -> list[Optimizer]:
        """The optimizers, as far as they are alive."""
        return list(self._optimizers())

    def schedulers(self) -> list[Any]:
        """The schedulers, as far as they are alive."""
        return list(self._schedulers())

    def scalers(self) -> list[Any]:
        """The gradient scalers, as far as they are alive."""
        return list(self._scalers())

    def without_models(self) -> TrainingState:
        """Everything beside models and optimizers."""
        rest = copy.copy(self)
        rest._models = rest._optimizers = _weak(())
        return rest

    def is_sharded(self) -> bool:
        """Whether this rank holds only a part of some parameters."""
        return any(is_sharded(parameter) for parameter in (*self._parameters(), *self._of_models()))

    def gpus(self) -> list[int]:
        """The GPUs that hold something of it."""
        return sorted({parameter.get_device() for parameter in (*self._parameters(), *self._of_models()) if parameter.is_cuda})

    def read(self, also: Mapping[str, Any] = MappingProxyType({})) -> Reading:
        """The training's own tensors, not copied, and a copy of everything else; `also` are further plain values to keep."""
        sources: list[Source] = []
        seen: dict[int, Ref] = {}

        def keep(tensor: torch.Tensor, *, steady: bool = True, checked: bool = True) -> Ref:
            ref = seen.get(id(tensor))
            if ref is None:
                ref = seen[id(tensor)] = Ref(len(sources))
                sources.append(Source(reading.own_numbers(tensor), steady, checked, getattr(tensor, "_spec", None)))
            return ref

        models = self._models()
        left_out = {id(parameter) for parameter in self._left_out()}
        plain = [scheduler.state_dict() for scheduler in self._schedulers()]
        tree: Tree = {
            "models": [reading.read_module(model, keep, left_out=left_out) for model in models],
            "averages": [reading.read_average(average, keep) for average in self._averages()],
            "optimizers": [reading.read_optimizer(optimizer, keep) for optimizer in self._optimizers()],
            "schedulers": [reading.read_plain(state, reading.changing(keep)) for state in plain],
            "scalers": [reading.read_scaler(scaler, keep) for scaler in self._scalers()],
            "counters": [counters.read() for counters in self._counters],
            **{name: reading.read_plain(value, reading.changing(keep)) for name, value in also.items()},
        }
        gpus = sorted({source.tensor.get_device() for source in sources if source.tensor.is_cuda})
        tree["randomness"] = read_randomness(gpus)
        return Reading(sources, tree)

    def put_back(self, tree: Tree, hosts: Sequence[torch.Tensor], *, randomness: bool = False) -> None:
        """Make the training what it was when `tree` was read. Raises CannotRestore, before anything is changed, if it cannot.

        The generators are left alone unless asked for: after a roll-back the same batches must not come again.
        """
        with torch.no_grad():
            plan = Plan(hosts)
            plan.all_of("models", tree["models"], self._models(), plan.module)
            if len(tree["averages"]) == len(self._averages()):  # one that came or went since is no reason not to go back
                plan.all_of("averages", tree["averages"], self._averages(), plan.average)
            plan.all_of("optimizers", tree["optimizers"], self._optimizers(), plan.optimizer)
            plan.all_of("schedulers", tree["schedulers"], self._schedulers(), plan.scheduler)
            plan.all_of("gradient scalers", tree["scalers"], self._scalers(), plan.scaler)
            plan.all_of("counters", tree["counters"], self._counters, plan.counters)
            plan.carry_out()
        if randomness:
            set_randomness(tree["randomness"])

    def _left_out(self) -> list[torch.Tensor]:
        return [] if self._whole else reading.frozen_to_leave_out(self._models(), self._parameters())

    def _of_models(self) -> list[torch.Tensor]:
        return [parameter for model in self._models() for parameter in model.parameters()]

    def _parameters(self) -> list[torch.Tensor]:
        return [p for optimizer in self._optimizers() for group in optimizer.param_groups for p in group["params"]]


def _weak(things: Iterable[Any]) -> Callable[[], list[Any]]:
    """The things that are alive, asked anew each time."""
    references = [_reference(thing) for thing in things]
    return lambda: [thing for reference in references if (thing := reference()) is not None]


def _reference(thing: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(thing)
    except TypeError:  # a class with slots
        return lambda: thing


def _with_inner(optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    """The optimizers, and those that they drive (a sharpness-aware one holds a plain one)."""
    found: dict[int, Optimizer] = {}
    for optimizer in optimizers:
        found[id(optimizer)] = optimizer
        for inner in vars(optimizer).values():
            if Optimizer in type(inner).__mro__ and "param_groups" in vars(inner):
                found[id(inner)] = inner
    return list(found.values())
