"""The state of a training: everything that has to be restored for it to continue as if it had never left that step.

    models        parameters and buffers, all of them; of sharded ones this rank's part
    optimizers    their state for each parameter, and the settings of their groups
    schedulers, gradient scalers, averaged copies of the weights, random number generators

All objects are held by weak references. Values are copied into the tensors that are there, so that captured graphs, compiled
code and other holders of the same tensors see them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from holdfast.state import objects
from holdfast.state.generators import read_process_generators, set_process_generators
from holdfast.state.host_copy import LiveState, Source
from holdfast.state.objects import Counters, Plan
from holdfast.state.parameters import Optimizer, local_tensor, optimizer_parameters
from holdfast.state.ranks import is_sharded
from holdfast.state.related_objects import find_related_objects, innermost
from holdfast.state.values import Ref, Tree, weak_reference


class TrainingState:
    """What makes up one training. `models()`, `optimizers()` and so on give those that are still alive."""

    def __init__(
        self,
        models: Iterable[nn.Module],
        optimizers: Iterable[Optimizer],
        *,
        schedulers: Iterable[Any] = (),
        scalers: Iterable[Any] = (),
        averages: Iterable[Any] = (),
        counters: Iterable[Counters] = (),
        not_restored: Iterable[str] = (),
        whole: bool = False,
    ) -> None:
        """With `whole` frozen parameters are always included, however large they are."""
        self.models, self.optimizers = _weak(models), _weak(_with_inner(optimizers))
        self.schedulers, self.scalers, self._averages = _weak(schedulers), _weak(scalers), _weak(averages)
        self._counters, self._not_restored, self._whole = list(counters), list(not_restored), whole

    @classmethod
    def discover(
        cls, models: Iterable[nn.Module], optimizers: Iterable[Optimizer], extra_emas: Iterable[Any] = (), *, whole: bool = False
    ) -> TrainingState:
        """With the schedulers, scalers and averages of these models and optimizers.

        Averages are recognised by type; `extra_emas` are others: modules, or anything with `state_dict()` and
        `load_state_dict()`.
        """
        models, optimizers, averages = list(models), [innermost(optimizer) for optimizer in optimizers], list(extra_emas)
        related = find_related_objects(models, _with_inner(optimizers))
        known = {id(part) for root in (*models, *averages) if isinstance(root, nn.Module) for part in root.modules()}
        averages += [average for average in related.averages if id(average) not in known]
        return cls(
            models,
            optimizers,
            schedulers=related.schedulers,
            scalers=related.scalers,
            averages=averages,
            counters=[Counters(holder) for holder in related.counters],
            not_restored=related.not_restored,
            whole=whole,
        )

    def missing(self) -> list[str]:
        """What will not be restored, each with the line to add. A learning rate set by hand needs nothing."""
        texts = list(self._not_restored)
        if not self.models():
            texts.append(
                "The model was not found, only the optimizer's parameters: buffers (BatchNorm's statistics) are not restored. "
                "To have them restored: holdfast.watch(model, optimizer)."
            )
        if frozen := self._skipped():
            size = sum(parameter.nbytes for parameter in frozen) / 1e9
            texts.append(f"{size:.1f} GB of frozen parameters are not copied, as nothing trains them: they stay as they are.")
        return texts

    def alive(self) -> bool:
        """Whether there is still something to restore."""
        return bool(self.models() or self.optimizers())

    def without_models(self) -> TrainingState:
        """Everything beside models and optimizers."""
        rest = copy.copy(self)
        rest.models = rest.optimizers = _weak(())
        return rest

    def is_sharded(self) -> bool:
        """Whether this rank holds only a part of some parameters."""
        return any(is_sharded(parameter) for parameter in (*self._parameters(), *self._of_models()))

    def gpus(self) -> list[int]:
        """The GPUs that hold something of it."""
        return sorted({parameter.get_device() for parameter in (*self._parameters(), *self._of_models()) if parameter.is_cuda})

    def read(self, also: Mapping[str, Any] = MappingProxyType({})) -> LiveState:
        """The training's own tensors, not copied, and a copy of everything else; `also` are further plain values."""
        sources: list[Source] = []
        seen: dict[int, Ref] = {}

        def keep(tensor: torch.Tensor, *, checked: bool = True) -> Ref:
            ref = seen.get(id(tensor))
            if ref is None:
                ref = seen[id(tensor)] = Ref(len(sources))
                sources.append(Source(local_tensor(tensor), checked, getattr(tensor, "_spec", None)))
            return ref

        skip = {id(parameter) for parameter in self._skipped()}
        tree: Tree = {
            "models": [objects.read_module(model, keep, skip=skip) for model in self.models()],
            "averages": [objects.read_average(average, keep) for average in self._averages()],
            "optimizers": [objects.read_optimizer(optimizer, keep) for optimizer in self.optimizers()],
            "schedulers": [objects.read_state(scheduler.state_dict(), keep) for scheduler in self.schedulers()],
            "scalers": [objects.read_scaler(scaler, keep) for scaler in self.scalers()],
            "counters": [counters.read() for counters in self._counters],
            **{name: objects.read_state(value, keep) for name, value in also.items()},
        }
        gpus = sorted({source.tensor.get_device() for source in sources if source.tensor.is_cuda})
        tree["randomness"] = read_process_generators(gpus)
        return LiveState(sources, tree)

    def restore(self, tree: Tree, hosts: Sequence[torch.Tensor], *, randomness: bool = False) -> None:
        """Make the training what it was when `tree` was read. Raises CannotRestore, with nothing changed, if it does not fit.

        Generators are not set unless asked for: after a roll-back the same batches must not come again.
        """
        with torch.no_grad():
            plan = Plan(hosts)
            plan.each("models", tree["models"], self.models(), plan.module)
            if len(tree["averages"]) == len(self._averages()):  # one that came or went since does not prevent a roll-back
                plan.each("averages", tree["averages"], self._averages(), plan.average)
            plan.each("optimizers", tree["optimizers"], self.optimizers(), plan.optimizer)
            plan.each("schedulers", tree["schedulers"], self.schedulers(), plan.scheduler)
            plan.each("gradient scalers", tree["scalers"], self.scalers(), plan.scaler)
            plan.each("counters", tree["counters"], self._counters, plan.counters)
            plan.carry_out()
        if randomness:
            set_process_generators(tree["randomness"])

    def _skipped(self) -> list[torch.Tensor]:
        return [] if self._whole else objects.large_frozen(self.models(), self._parameters())

    def _of_models(self) -> list[torch.Tensor]:
        return [parameter for model in self.models() for parameter in model.parameters()]

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for optimizer in self.optimizers() for parameter in optimizer_parameters(optimizer)]


def _weak(things: Iterable[Any]) -> Callable[[], list[Any]]:
    """The things that are still alive at each call."""
    references = [weak_reference(thing) for thing in things]
    return lambda: [thing for reference in references if (thing := reference()) is not None]


def _with_inner(optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    """The optimizers, and those that they drive (a sharpness-aware one holds a plain one)."""
    every: dict[int, Optimizer] = {}
    for optimizer in optimizers:
        every[id(optimizer)] = optimizer
        for inner in vars(optimizer).values():
            if Optimizer in type(inner).__mro__ and "param_groups" in vars(inner):
                every[id(inner)] = inner
    return list(every.values())
