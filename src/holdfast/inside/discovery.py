"""Find the models and optimizers of a training; the names of their parameters, and which of them are not trained.

Modules and optimizers are registered as they are created. Where Holdfast came later, or a model was unpickled or copied, all
objects of the garbage collector are searched, once per training at its first step. That is the fallback only, because it touches
every object: a large dataset in memory would no longer be shared with forked loader workers. The search looks at types, never
at instances: `isinstance` on a lazy proxy could run its code. A name is stored as its code in the recorder's string table.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from holdfast.inside.observers.parameters import NO_GRADIENT, TRAINED, UNUSED, Change, status
from holdfast.signals.recorder import Recorder
from holdfast.signals.schema import MISSING_INT
from holdfast.state.parameters import plain_name as plain_name

_KERAS_STATISTICS = ("moving_mean", "moving_variance", "seed_generator_state")  # parameters to torch, but never trained
_PASSES = 8  # backward passes that a gradient must have missed in a row


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

    def note_optimizer(self, _seen: None, optimizer: torch.optim.Optimizer, *_args: Any, **_kwargs: Any) -> None:
        """Called after `Optimizer.__init__`, which has no hook."""
        self._optimizers[id(optimizer)] = optimizer

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


class Models:
    """The models of one training, held weakly."""

    def __init__(self, recorder: Recorder) -> None:
        self._strings = recorder.strings
        self._roots: list[weakref.ref[nn.Module]] = []
        self._parts: list[weakref.ref[nn.Module]] = []  # that hold parameters; no reference to those: torch could not swap them
        self._names: dict[int, int] = {}
        self._texts: dict[int, str] = {}
        self._reported: dict[int, str] = {}  # the status of a parameter, by id
        self._gradients: dict[int, tuple[int, int]] = {}  # of a parameter by id: its gradient's id, and how often it was written
        self._backwards = 0  # passes until then

    def learn(self, roots: list[nn.Module]) -> None:
        """Replace the models."""
        self._roots = [weakref.ref(root) for root in roots]
        self._parts = [weakref.ref(part) for root in roots for part in root.modules() if part._parameters]
        pairs = list(named(roots, "parameters"))
        codes = self._strings.codes([name for name, _ in pairs])
        self._names = {id(parameter): code for (_, parameter), code in zip(pairs, codes, strict=True)}
        self._texts = {code: name for (name, _), code in zip(pairs, codes, strict=True)}

    def roots(self) -> list[nn.Module]:
        """The models that are still alive."""
        return [root for reference in self._roots if (root := reference()) is not None]

    def parameters(self) -> list[torch.Tensor]:
        """The parameters of the parts that are still alive, such as a backbone without its head."""
        parts = [part for reference in self._parts if (part := reference()) is not None]
        return [parameter for part in parts for parameter in part._parameters.values() if parameter is not None]

    def name_of(self, code: int) -> str:
        """The name of a parameter by its code."""
        return self._texts.get(code, "?")

    def names_of(self, parameters: list[torch.Tensor]) -> list[int]:
        """The name codes of the parameters that have a gradient."""
        return [self._names.get(id(parameter), MISSING_INT) for parameter in parameters if parameter.grad is not None]

    def newly_untrained(
        self, main: Sequence[torch.Tensor], others: Iterable[torch.Tensor], backwards: int = 0, ran: Collection[str] = ()
    ) -> tuple[Change, ...]:
        """The parameters whose status changed: why they are not trained, or that they are now.

        `main` are those of the main optimizer, whose step comes next, after so many backward passes in all. Those that only
        `others` hold are skipped: they have no gradient between the steps of their own optimizer. `ran` are the modules of which
        a forward pass was seen. A model with other parameters, such as a new head, is learned again.
        """
        roots = self.roots()
        parameters = {id(parameter): parameter for root in roots for parameter in root.parameters()}
        if parameters.keys() != self._names.keys():
            self.learn(roots)
        in_main, in_others = {id(parameter) for parameter in main}, {id(parameter) for parameter in others}
        never_written = self._never_written(main, backwards)
        changes = []
        for position, (key, parameter) in enumerate(parameters.items()):
            if key in in_main or key not in in_others:
                why = NO_GRADIENT if key in never_written else status(parameter, in_main=key in in_main)
                if why == NO_GRADIENT and ran and self._texts.get(self._names[key], "").rpartition(".")[0] not in ran:
                    why = UNUSED  # its module takes no part
                if why != TRAINED and self._texts.get(self._names[key], "").endswith(_KERAS_STATISTICS):
                    continue
                if self._reported.get(key, TRAINED) != why:
                    self._reported[key] = why
                    changes.append(Change(self._names[key], why, position, len(parameters)))
        return tuple(changes)

    def _never_written(self, parameters: Sequence[torch.Tensor], backwards: int) -> set[int]:
        """The parameters whose gradient is 0 because no backward pass has reached it since the last time, not since units died.

        Where gradients are zeroed in place they are there all the same. All are written as often by zeroing and clipping, and
        by each pass that reaches them once more.
        """
        then, passes = self._gradients, backwards - self._backwards
        now = {id(parameter): parameter.grad for parameter in parameters if type(parameter.grad) is torch.Tensor}
        self._gradients = {key: (id(gradient), gradient._version) for key, gradient in now.items()}
        self._backwards = backwards
        same = [key for key, (gradient, _) in self._gradients.items() if key in then and then[key][0] == gradient]
        writes = {key: self._gradients[key][1] - then[key][1] for key in same}
        fewest = max(writes.values(), default=0) - passes
        if passes < _PASSES or fewest < 0:
            return set()
        return {key for key, count in writes.items() if count == fewest and not now[key].any()}
