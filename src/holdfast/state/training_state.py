"""The state of a training: everything that must be restored to continue from a step.

    models        parameters and buffers; of sharded ones this rank's shard
    optimizers    the state of each parameter, and the settings of the groups
    schedulers, gradient scalers, averaged weights (EMA), random generators

All objects are held by weak references. Values are copied into the existing tensors, so that captured graphs, compiled code
and other holders of these tensors see them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from holdfast import units
from holdfast.state import objects
from holdfast.state.generators import read_process_generators, set_process_generators
from holdfast.state.host_copy import LiveState, Source
from holdfast.state.objects import RestorePlan
from holdfast.state.parameters import Optimizer, local_tensor, parameters_in, parameters_of
from holdfast.state.ranks import is_flattened, is_sharded
from holdfast.state.related_objects import RelatedObjects, find_related_objects, innermost
from holdfast.state.values import Ref, Tree, weak_reference


class TrainingState:
    """The objects of one training. `models()`, `optimizers()` and so on return those still alive."""

    def __init__(
        self,
        models: Iterable[nn.Module],
        optimizers: Iterable[Optimizer],
        related: RelatedObjects | None = None,
        *,
        whole: bool = False,
    ) -> None:
        """With `whole` frozen parameters are always included, whatever their size."""
        related = related or RelatedObjects()
        self.models, self.optimizers = _weak(models), _weak(_with_inner(optimizers))
        self.schedulers, self.scalers, self.averages = map(_weak, (related.schedulers, related.scalers, related.averages))
        self._counters, self._not_restored, self._whole = _weak(related.counters), related.not_restored, whole

    @classmethod
    def discover(
        cls, models: Iterable[nn.Module], optimizers: Iterable[Optimizer], extra_emas: Iterable[Any] = (), *, whole: bool = False
    ) -> TrainingState:
        """Find the schedulers, scalers and averages of these models and optimizers.

        Averages are recognised by type; `extra_emas` are further ones: modules, or anything with a state dict.
        """
        models, optimizers, averages = list(models), [innermost(optimizer) for optimizer in optimizers], list(extra_emas)
        related = find_related_objects(models, _with_inner(optimizers))
        members = {id(part) for root in (*models, *averages) if isinstance(root, nn.Module) for part in root.modules()}
        related.averages = averages + [average for average in related.averages if id(average) not in members]
        return cls(models, optimizers, related, whole=whole)

    def missing(self) -> list[str]:
        """What will not be restored, each with the line of code to add."""
        texts = list(self._not_restored)
        if not self.models():
            texts.append(
                "The model was not found, only the optimizer's parameters: buffers (BatchNorm's statistics) are not restored. "
                "To have them restored: holdfast.watch(model, optimizer)."
            )
        if frozen := self._skipped():
            size = units.size(sum(parameter.nbytes for parameter in frozen))
            texts.append(f"{size} of frozen parameters are not copied, as nothing trains them: they stay as they are.")
        return texts

    def alive(self) -> bool:
        """Whether there is still something to restore."""
        return bool(self.models() or self.optimizers())

    def is_sharded(self) -> bool:
        """Whether this rank holds only a shard of some parameters."""
        return any(map(is_sharded, (*self._parameters(), *self._model_parameters())))

    def is_flattened(self) -> bool:
        """Whether only this number of ranks can use its shards (FullyShardedDataParallel)."""
        return any(map(is_flattened, (*self._parameters(), *self._model_parameters())))

    def gpus(self) -> list[int]:
        """The indices of the GPUs that hold its parameters."""
        return sorted({p.get_device() for p in (*self._parameters(), *self._model_parameters()) if p.is_cuda})

    def read(self, also: Mapping[str, Any] = MappingProxyType({})) -> LiveState:
        """The training's own tensors, and a copy of everything else; `also` adds plain values."""
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
            "averages": [objects.read_average(average, keep) for average in self.averages()],
            "optimizers": [objects.read_optimizer(optimizer, keep) for optimizer in self.optimizers()],
            "schedulers": [objects.read_state(scheduler.state_dict(), keep) for scheduler in self.schedulers()],
            "scalers": [objects.read_scaler(scaler, keep) for scaler in self.scalers()],
            "counters": [objects.read_counters(holder) for holder in self._counters()],
            **{name: objects.read_state(value, keep) for name, value in also.items()},
        }
        gpus = sorted({source.tensor.get_device() for source in sources if source.tensor.is_cuda})
        tree["randomness"] = read_process_generators(gpus)
        return LiveState(sources, tree)

    def restore(self, tree: Tree, hosts: Sequence[torch.Tensor], *, randomness: bool = False, schedulers: bool = True) -> None:
        """Restore the state that `tree` holds. Raises CannotRestore, with nothing changed, if it does not fit.

        By default the random generators are not restored: after a rollback the same batches must not come again.
        """
        tree = self.in_live_order(tree)
        with torch.no_grad():
            plan = RestorePlan(hosts)
            plan.add("models", tree["models"], self.models(), plan.module)
            if len(tree["averages"]) == len(self.averages()):  # an average added or deleted since does not prevent a rollback
                plan.add("averages", tree["averages"], self.averages(), plan.average)
            plan.add("optimizers", tree["optimizers"], self.optimizers(), plan.optimizer)
            if schedulers:
                plan.add("schedulers", tree["schedulers"], self.schedulers(), plan.scheduler)
            plan.add("gradient scalers", tree["scalers"], self.scalers(), plan.scaler)
            plan.add("counters", tree["counters"], self._counters(), plan.counters)
            plan.apply()
        if randomness:
            set_process_generators(tree["randomness"])

    def in_live_order(self, tree: Tree) -> Tree:
        """The tree with its optimizers, and the parameters of each, in the order of the live ones: a script may create them in
        any order, and list parameters that it collected in a set in another order in each process.
        """
        models = zip(tree["models"], self.models(), strict=False)
        refs = {
            id(p): saved.get("parameters", {}).get(name) for saved, model in models for name, p in parameters_in(model).items()
        }
        live = [[refs.get(id(p)) for p in parameters_of(optimizer)] for optimizer in self.optimizers()]
        places = {frozenset(saved["parameters"].values()): place for place, saved in enumerate(tree["optimizers"])}
        order = [places.get(frozenset(of_one)) for of_one in live]
        if None in order or sorted(place for place in order if place is not None) != list(range(len(tree["optimizers"]))):
            return tree
        ordered: Tree = {kind: [] for kind in ("optimizers", "gradients") if len(tree.get(kind, ())) == len(order)}
        for place, of_one in zip(order, live, strict=True):
            saved = tree["optimizers"][place]
            numbers = {ref: number for number, ref in saved["parameters"].items()}
            now = {numbers[ref]: number for number, ref in enumerate(of_one)}
            if len(now) < len(of_one):  # two of them share their memory
                return tree
            renumbered = {part: _renumbered(saved[part], now) for part in ("parameters", "state")}
            ordered["optimizers"].append({**saved, **renumbered})
            if "gradients" in ordered:
                ordered["gradients"].append(_renumbered(tree["gradients"][place], now))
        return {**tree, **ordered}

    def _skipped(self) -> list[torch.Tensor]:
        return [] if self._whole else objects.large_frozen(self.models(), self._parameters())

    def _model_parameters(self) -> list[torch.Tensor]:
        return [parameter for model in self.models() for parameter in model.parameters()]

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for optimizer in self.optimizers() for parameter in parameters_of(optimizer)]


def _renumbered(by_number: Mapping[int, Any], now: Mapping[int, int]) -> dict[int, Any]:
    return {now[number]: value for number, value in by_number.items()}


def _weak(objects: Iterable[Any]) -> Callable[[], list[Any]]:
    """A function that returns the objects still alive."""
    references = [weak_reference(obj) for obj in objects]
    return lambda: [obj for reference in references if (obj := reference()) is not None]


def _with_inner(optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    """The optimizers and those inside them (SAM holds a base optimizer)."""
    found: dict[int, Optimizer] = {}
    for optimizer in optimizers:
        found[id(optimizer)] = optimizer
        for inner in vars(optimizer).values():
            if Optimizer in type(inner).__mro__ and "param_groups" in vars(inner):
                found[id(inner)] = inner
    return list(found.values())
