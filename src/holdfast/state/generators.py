"""Random number generators: those of the process, and whatever decides which batches a loader gives.

In a loader generators, epoch numbers and samplers with a state are searched for in its attributes, and in those of its
samplers, its data set and its transforms. Nothing of theirs is called but `state_dict()` of a sampler. A generator is named by
its path: "sampler.generator".
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data.dataloader import _BaseDataLoaderIter

from holdfast.state.values import Ref, Tree, attributes_of, flatten, unflatten

_EPOCHS = ("epoch", "_epoch", "iteration")  # attributes of samplers, data sets and loaders that go into their seed
_MAX_ITEMS = 64  # of a container that is searched: a list of a million samples holds no generators
_MAX_DEPTH, _MAX_OBJECTS = 7, 2000
_NOT_SEARCHED = (
    *(str, bytes, int, float, complex, type(None), type, torch.Tensor, np.ndarray, torch.dtype, torch.device),
    *(FunctionType, BuiltinFunctionType, MethodType, ModuleType, _BaseDataLoaderIter),
)


def read_process_generators(gpus: Iterable[int]) -> Tree:
    """The state of the process's generators in plain containers: torch on the host and on these GPUs, numpy, Python."""
    return {
        "torch": torch.get_rng_state(),
        "cuda": {index: torch.cuda.get_rng_state(index) for index in gpus},
        "numpy": _plain(np.random.get_state(legacy=False)),
        "python": random.getstate(),
    }


def set_process_generators(saved: Tree) -> None:
    """Set the process's generators as they were; those of a GPU that is not here are skipped."""
    torch.set_rng_state(saved["torch"])
    for index, state in saved["cuda"].items():
        if torch.cuda.is_available() and index < torch.cuda.device_count():
            torch.cuda.set_rng_state(state, index)
    np.random.set_state(_values(saved["numpy"]))
    _set_python(random, saved["python"])


class LoaderGenerators:
    """What decides the batches of one loader."""

    def __init__(self, loader: Any) -> None:
        self.generators: dict[str, Any] = {}
        self._epochs: dict[str, tuple[Any, str]] = {}
        self._samplers: dict[str, Any] = {}
        seen: set[int] = set()
        waiting = deque([("", loader, 0)])
        while waiting and len(seen) < _MAX_OBJECTS:
            path, thing, depth = waiting.popleft()
            if id(thing) in seen or isinstance(thing, _NOT_SEARCHED):
                continue
            seen.add(id(thing))
            if isinstance(thing, (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)):
                self.generators[path] = thing
            elif depth > 0 and _has_state(path, thing):
                self._samplers[path] = thing
            elif depth < _MAX_DEPTH:
                self._note_epochs(path, thing)
                waiting.extend((f"{path}.{name}".lstrip("."), inner, depth + 1) for name, inner in _contents(thing))

    def read(self, *, samplers: bool = False) -> Tree:
        """The state of all of them and of the process's generators, in plain containers; nothing is moved.

        That of samplers means something only before a pass: workers have them run ahead.
        """
        gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
        return {
            "process": read_process_generators(gpus),
            "generators": {path: _read(generator) for path, generator in self.generators.items()},
            "epochs": {path: vars(holder).get(name) for path, (holder, name) in self._epochs.items()},
            "samplers": {path: sampler.state_dict() for path, sampler in self._samplers.items()} if samplers else {},
        }

    def set(self, saved: Tree) -> None:
        """Set all of them as they were. One that is gone is skipped."""
        for path, state in saved["samplers"].items():
            if path in self._samplers:
                self._samplers[path].load_state_dict(state)
        self._set_epochs(saved, only_unset=False)
        self._set_generators(saved)
        set_process_generators(saved["process"])

    def set_for_next_pass(self, saved: Tree) -> None:
        """Set the loader's own generators, and epoch numbers that are still 0: one that the script has set stays."""
        self._set_generators(saved)
        self._set_epochs(saved, only_unset=True)

    def _set_generators(self, saved: Tree) -> None:
        for path, state in saved["generators"].items():
            generator = self.generators.get(path)
            if generator is not None and type(generator).__name__ == state["kind"]:
                _set(generator, state["state"])

    def _set_epochs(self, saved: Tree, *, only_unset: bool) -> None:
        for path, number in saved["epochs"].items():
            holder, name = self._epochs.get(path, (None, ""))
            if holder is not None and number is not None and not (only_unset and vars(holder).get(name)):
                setattr(holder, name, number)

    def _note_epochs(self, path: str, thing: Any) -> None:
        for name in _EPOCHS:
            number = attributes_of(thing).get(name, ())
            if type(number) is int or number is None:
                self._epochs[f"{path}.{name}".lstrip(".")] = (thing, name)


def _contents(thing: Any) -> list[tuple[str, Any]]:
    if isinstance(thing, (list, tuple)):
        return [(str(number), inner) for number, inner in enumerate(thing)] if len(thing) <= _MAX_ITEMS else []
    if type(thing) is dict:
        return [(str(name), inner) for name, inner in thing.items()] if len(thing) <= _MAX_ITEMS else []
    return list(attributes_of(thing).items())


def _has_state(path: str, thing: Any) -> bool:
    """Whether a thing is a sampler that saves and loads a state of its own."""
    kind = type(thing)
    named = path.rpartition(".")[2] in ("sampler", "batch_sampler")
    return named and hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict") and not issubclass(kind, nn.Module)


def _read(generator: Any) -> Tree:
    if isinstance(generator, torch.Generator):
        state: Any = generator.get_state()
    elif isinstance(generator, np.random.Generator):
        state = _plain(generator.bit_generator.state)
    elif isinstance(generator, np.random.RandomState):
        state = _plain(generator.get_state(legacy=False))
    else:
        state = generator.getstate()
    return {"kind": type(generator).__name__, "state": state}


def _set(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = _values(state)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(_values(state))
    else:
        _set_python(generator, state)


def _set_python(generator: Any, state: Any) -> None:
    version, numbers, gauss = state
    generator.setstate((version, tuple(numbers), gauss))


def _plain(state: Any) -> Any:
    """A state of numpy's with its arrays as bytes: there are no tensors in it."""
    return flatten(state, lambda _: Ref(0))


def _values(state: Any) -> Any:
    return unflatten(state, lambda ref: ref)
