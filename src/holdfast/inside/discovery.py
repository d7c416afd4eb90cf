"""Find the objects of the training without being told: which models hold these parameters, which optimizers exist.

Modules and optimizers are noted as they are made. Where Holdfast came later, or a model was made another way (unpickled, copied),
the garbage collector is asked, once per training at its first step: it knows every live object. But asking it touches them all,
and a large data set in memory would no longer be shared with the loader's forked workers. Types are looked at there, never
instances: an `isinstance` on a lazy proxy could run its code.
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
    """What of interest was alive when it was asked."""

    modules: list[nn.Module]
    optimizers: list[torch.optim.Optimizer]


class Registry:
    """The modules and optimizers of this process, noted as they are made. Keeps nothing alive."""

    def __init__(self) -> None:
        self.is_whole = False  # whether it was there before the first model was
        self._modules: dict[int, weakref.ref[nn.Module]] = {}
        self._optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = {}

    def note_module(self, module: nn.Module, _name: str, _part: Any) -> None:
        """A module has got a parameter or a submodule: for torch's hooks on registration."""
        _note(self._modules, module)

    def noting(self, original: Callable[..., None]) -> Callable[..., None]:
        """The same constructor of an optimizer; there is no hook for it."""

        def __init__(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            _note(self._optimizers, optimizer)

        return __init__

    def live_objects_with(self, parameters: Iterable[torch.Tensor]) -> LiveObjects | None:
        """What is alive, if the modules that hold these parameters are all known."""
        if not self.is_whole:
            return None
        modules = [module for reference in list(self._modules.values()) if (module := reference()) is not None]
        held = {id(parameter) for module in modules for parameter in module._parameters.values()}
        if not all(id(parameter) in held for parameter in parameters):
            return None
        return LiveObjects(modules, [one for reference in list(self._optimizers.values()) if (one := reference()) is not None])


def _note(known: dict[int, weakref.ref[Any]], thing: Any) -> None:
    key = id(thing)
    if key not in known:
        known[key] = weakref.ref(thing, lambda _: known.pop(key, None))


def find_live_objects() -> LiveObjects:
    """Ask the garbage collector for all modules and optimizers."""
    modules: list[nn.Module] = []
    optimizers: list[torch.optim.Optimizer] = []
    kinds: dict[type, int] = {}
    for thing in gc.get_objects():
        kind = type(thing)
        wanted = kinds.get(kind)
        if wanted is None:
            wanted = kinds[kind] = _kind_of(kind)
        if wanted == 1:
            modules.append(thing)
        elif wanted == 2 and "_optimizer_step_pre_hooks" in vars(thing):  # a wrapper around an optimizer has none
            optimizers.append(thing)
    return LiveObjects(modules, optimizers)


def _kind_of(kind: type) -> int:
    bases = kind.__mro__
    return 1 if nn.Module in bases else 2 if torch.optim.Optimizer in bases else 0


def find_roots(modules: Iterable[nn.Module], parameters: Iterable[torch.Tensor]) -> list[nn.Module]:
    """The fewest outermost modules that hold these parameters; of two that hold the same, the smaller."""
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
    """The models, and what wrappers hold inside: every module on the way down that still holds all that is trained.

    A part that is frozen in evaluation mode (`model.backbone.eval()`) is no whole model, however large.
    """
    found = []
    for root in roots:
        module, trained = root, _trained_count(root)
        while True:
            found.append(module)
            inner = [child for child in module.children() if trained and _trained_count(child) == trained]
            if len(inner) != 1:
                break
            module = inner[0]
    return found


def _trained_count(module: nn.Module) -> int:
    return sum(parameter.requires_grad for parameter in module.parameters())


def named(roots: list[nn.Module], kind: str) -> Iterator[tuple[str, Any]]:
    """Names and objects of all `parameters` or `modules` of the roots; several roots are told apart by class."""
    for prefix, root in zip(_prefixes(roots), roots, strict=True):
        pairs = root.named_parameters() if kind == "parameters" else root.named_modules()
        for name, thing in pairs:
            yield (prefix + plain_name(name)).rstrip("."), thing


def _prefixes(roots: list[nn.Module]) -> list[str]:
    if len(roots) <= 1:
        return [""] * len(roots)
    names = [type(root).__name__ for root in roots]
    return [f"{name}.{names[:i].count(name)}." if names.count(name) > 1 else f"{name}." for i, name in enumerate(names)]
