"""The state of `FullyShardedDataParallel` (FSDP1) models, whose parameters are flattened: read and restored by name.

A flat shard means nothing to another number of ranks, so torch's state-dict functions are used. They run collectives: all ranks
must save and restore at the same point.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from holdfast.state import report
from holdfast.state.host_copy import LiveState, Source
from holdfast.state.objects import Keep
from holdfast.state.parameters import Optimizer, local_tensor
from holdfast.state.training_state import TrainingState
from holdfast.state.values import Ref, Tree, flatten_plain, unflatten


def by_name(state: TrainingState) -> TrainingState:
    """The same state, read and restored by name if its parameters are flattened."""
    flat = any(hasattr(parameter, "_fsdp_flattened") for model in state.models() for parameter in model.parameters())
    return FlatState(state) if flat else state


class FlatState(TrainingState):
    """A state whose models and optimizers are read and restored through `torch.distributed.checkpoint.state_dict`."""

    def __init__(self, state: TrainingState) -> None:
        self.__dict__.update(state.__dict__)
        self._rest = state.without_models()

    def read(self, also: Mapping[str, Any] = MappingProxyType({})) -> LiveState:
        """The state by name, in new tensors: each rank's shards."""
        rest = self._rest.read(also)
        sources, seen = list(rest.sources), dict[int, Ref]()

        def keep(tensor: torch.Tensor, *, checked: bool = True) -> Ref:
            if id(tensor) not in seen:
                seen[id(tensor)] = Ref(len(sources))
                sources.append(_source(tensor, checked=checked))
            return seen[id(tensor)]

        models = self._model_states()
        optimizers = self._optimizer_states()
        tree = {**rest.tree, "models": [_module(state, keep) for state in models]}
        names = {name: ref for saved in tree["models"] for name, ref in saved["parameters"].items()}
        tree["optimizers"] = [_numbered(state, names, keep) for state in optimizers]
        return LiveState(sources, tree)

    def restore(self, tree: Tree, hosts: Sequence[torch.Tensor], *, randomness: bool = False) -> None:
        """Restore the state; tensors are full, or shards from `read`."""
        api, full = _api(), not any(_spec(host) is not None for host in hosts)
        options = api.StateDictOptions(full_state_dict=full)

        def get(ref: Ref) -> Any:
            return hosts[ref.number]

        with _hidden():
            for model, saved in zip(self.models(), tree["models"], strict=True):
                weights = unflatten({name: ref for kind in saved.values() for name, ref in kind.items()}, get)
                api.set_model_state_dict(model, weights, options=options)
            pairs = zip(self._with_models(), self._optimizer_states(), tree["optimizers"], strict=True)
            for (model, optimizer), live, saved in pairs:
                state = _named(unflatten(saved, get), live)
                api.set_optimizer_state_dict(model, optimizer, state, options=options)
        self._rest.restore({**tree, "models": [], "optimizers": []}, hosts, randomness=randomness)

    def _model_states(self) -> list[dict[str, Any]]:
        with _hidden():
            return [_api().get_model_state_dict(model) for model in self.models()]

    def _optimizer_states(self) -> list[dict[str, Any]]:
        with _hidden():
            return [_api().get_optimizer_state_dict(model, optimizer) for model, optimizer in self._with_models()]

    def _with_models(self) -> list[tuple[nn.Module, Optimizer]]:
        """Each optimizer with the model whose parameters it updates."""
        pairs = []
        for optimizer in self.optimizers():
            trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            own = next((m for m in self.models() if any(id(p) in trained for p in m.parameters())), None)
            if own is not None:
                pairs.append((own, optimizer))
        return pairs


def _module(state: Mapping[str, Any], keep: Keep) -> Tree:
    checked = {name: value.is_floating_point() if type(value) is torch.Tensor else True for name, value in state.items()}
    tensors = {name: keep(value, checked=checked[name]) for name, value in state.items() if isinstance(value, torch.Tensor)}
    return {"parameters": tensors, "buffers": {}, "other_buffers": {}}


def _numbered(state: Mapping[str, Any], names: Mapping[str, Ref], keep: Keep) -> Tree:
    """An optimizer's state by name, converted to parameter numbers as in other optimizers."""
    order = [name for group in state["param_groups"] for name in group["params"]]
    held = {number: state["state"][name] for number, name in enumerate(order) if name in state["state"]}
    groups = [
        {"count": len(group["params"]), "settings": flatten_plain({k: v for k, v in group.items() if k != "params"}, keep)}
        for group in state["param_groups"]
    ]
    return {
        "parameters": {number: names[name] for number, name in enumerate(order) if name in names},
        "state": {number: flatten_plain(dict(values), keep) for number, values in held.items()},
        "groups": groups,
    }


def _named(saved: Tree, live: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse, with the names of the live optimizer's parameters."""
    numbers = itertools.count()
    groups, state = [], {}
    for old, group in zip(saved["groups"], live["param_groups"], strict=True):
        for name, number in zip(group["params"], numbers, strict=False):
            if number in saved["state"]:
                state[name] = saved["state"][number]
        groups.append({**group, **old["settings"]})
    return {"state": state, "param_groups": groups}


def _source(tensor: torch.Tensor, *, checked: bool) -> Source:
    spec = _spec(tensor)
    if not hasattr(spec, "local_shards"):
        return Source(local_tensor(tensor), checked=checked, spec=spec)
    shards = spec.local_shards()  # at most one
    return Source(shards[0].tensor.detach() if shards else torch.empty(0), checked=checked, spec=spec)


def _spec(tensor: Any) -> Any:
    return tensor if hasattr(tensor, "local_shards") else getattr(tensor, "_spec", None)


def _api() -> Any:
    return importlib.import_module("torch.distributed.checkpoint.state_dict")


@contextlib.contextmanager
def _hidden() -> Iterator[None]:
    """Hide the optimizer step without gradients that torch makes to initialise a fresh optimizer's state."""
    hidden = report.recorder.while_unseen() if report.recorder is not None else contextlib.nullcontext()
    with warnings.catch_warnings(), hidden:
        warnings.simplefilter("ignore")  # torch's own deprecations
        yield
