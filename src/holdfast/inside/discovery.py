"""Find the models and optimizers of a training.

Modules and optimizers are registered as they are created. Where Holdfast came later, or a model was unpickled or copied, all
objects of the garbage collector are searched, once per training at its first step. That is the fallback only, because it touches
every object: a large dataset in memory would no longer be shared with forked loader workers. The search looks at types, never
at instances: `isinstance` on a lazy proxy could run its code.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from holdfast.state.parameters import plain_name as plain_name


@dataclass(frozen=True, slots=True)
class LiveObjects:
    """The modules and optimizers that are alive."""

    modules: list[nn.Module]
    optimizers: list[torch.optim.Optimizer]


class Registry:
    """The modules and optimizers of this process, registered as they are created. Keeps nothing alive."""

    def __init__(self) -> None:
        self.is_whole = False  # whether it existed before the first model
        self._modules = weakref.WeakValueDictionary[int, nn.Module]()  # by id: a module may be unhashable
        self._optimizers = weakref.WeakValueDictionary[int, torch.optim.Optimizer]()

    def note_module(self, module: nn.Module, _name: str, _child: Any) -> None:
        """Hook for torch: a module has registered a parameter or a submodule."""
        if id(module) not in self._modules:
            self._modules[id(module)] = module

    def noting(self, original: Callable[..., None]) -> Callable[..., None]:
        """Wrap `Optimizer.__init__`, which has no hook."""

        def __init__(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self._optimizers[id(optimizer)] = optimizer

        return __init__

    def live_objects_with(self, parameters: Iterable[torch.Tensor]) -> LiveObjects | None:
        """The live objects; None unless all modules that hold these parameters are registered."""
        if not self.is_whole:
            return None
        modules = list(self._modules.values())
        held = {id(parameter) for module in modules for parameter in module._parameters.values()}
        if not all(id(parameter) in held for parameter in parameters):
            return None
        return LiveObjects(modules, list(self._optimizers.values()))


def find_live_objects() -> LiveObjects:
    """Search the garbage collector's objects for modules and optimizers."""
    modules: list[nn.Module] = []
    optimizers: list[torch.optim.Optimizer] = []
    base_of: dict[type, type | None] = {}  # a type's MRO is searched once
    for value in gc.get_objects():
        kind = type(value)
        try:
            base = base_of[kind]
        except KeyError:
            base = base_of[kind] = next((base for base in (nn.Module, torch.optim.Optimizer) if base in kind.__mro__), None)
        if base is nn.Module:
            modules.append(value)
        elif base is not None and "_optimizer_step_pre_hooks" in vars(value):  # a wrapper around an optimizer has none
            optimizers.append(value)
    return LiveObjects(modules, optimizers)


def find_roots(modules: Iterable[nn.Module], parameters: Iterable[torch.Tensor]) -> list[nn.Module]:
    """The fewest outermost modules that hold these parameters; of two with the same parameters, the smaller."""
    modules = list(modules)
    children = {id(child) for module in modules for child in module._modules.values()}
    wanted = {id(parameter) for parameter in parameters}
    held: list[tuple[set[int], int, nn.Module]] = []
    for module in modules:
        if id(module) not in children and not isinstance(module, torch.jit.ScriptModule):
            own = {id(parameter) for parameter in module.parameters()} & wanted
            if own:
                held.append((own, sum(1 for _ in module.modules()), module))
    roots: list[nn.Module] = []
    while wanted and held:
        own, _, module = max(held, key=lambda entry: (len(entry[0] & wanted), -entry[1]))
        if not own & wanted:
            break
        roots.append(module)
        wanted -= own
    return roots


def whole_models(roots: Iterable[nn.Module]) -> list[nn.Module]:
    """The models and, inside wrappers, every module that still holds all trained parameters.

    A frozen part in evaluation mode (`model.backbone.eval()`) is not a whole model, however large.
    """
    models = []
    for root in roots:
        module, trained = root, _num_trained(root)
        while True:
            models.append(module)
            inner = [child for child in module.children() if trained and _num_trained(child) == trained]
            if len(inner) != 1:
                break
            module = inner[0]
    return models


def _num_trained(module: nn.Module) -> int:
    return sum(parameter.requires_grad for parameter in module.parameters())


def named(roots: list[nn.Module], kind: str) -> Iterator[tuple[str, Any]]:
    """Names and objects of all `parameters` or `modules` of the roots; several roots are prefixed by class."""
    for prefix, root in zip(_prefixes(roots), roots, strict=True):
        pairs = root.named_parameters() if kind == "parameters" else root.named_modules()
        for name, value in pairs:
            yield (prefix + plain_name(name)).rstrip("."), value


def _prefixes(roots: list[nn.Module]) -> list[str]:
    if len(roots) <= 1:
        return [""] * len(roots)
    names = [type(root).__name__ for root in roots]
    return [f"{name}.{names[:i].count(name)}." if names.count(name) > 1 else f"{name}." for i, name in enumerate(names)]
