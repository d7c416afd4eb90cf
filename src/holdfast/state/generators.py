"""Random generators: those of the process, and those that decide the batches of a loader.

Generators, epoch numbers and stateful samplers are searched in the attributes of a loader, its samplers, dataset and
transforms. Only `state_dict()` of a sampler is called. A generator is named by its path: "sampler.generator".
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
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
    """The states of the process's generators: torch on the host and these GPUs, numpy, Python."""
    return {
        "torch": torch.get_rng_state(),
        "cuda": {index: torch.cuda.get_rng_state(index) for index in gpus},
        "numpy": _plain(np.random.get_state(legacy=False)),
        "python": random.getstate(),
    }


def set_process_generators(saved: Tree) -> None:
    """Restore the process's generators; those of missing GPUs are skipped."""
    torch.set_rng_state(saved["torch"])
    for index, state in saved["cuda"].items():
        if torch.cuda.is_available() and index < torch.cuda.device_count():
            torch.cuda.set_rng_state(state, index)
    np.random.set_state(_values(saved["numpy"]))
    _set_python(random, saved["python"])


class LoaderGenerators:
    """The generators, epochs and samplers that decide the batches of a loader."""

    def __init__(self, loader: Any) -> None:
        self.generators: dict[str, Any] = {}
        self._epochs: dict[str, tuple[Any, str]] = {}
        self._samplers: dict[str, Any] = {}
        seen: set[int] = set()
        pending = deque([("", loader, 0)])
        while pending and len(seen) < _MAX_OBJECTS:
            path, obj, depth = pending.popleft()
            if id(obj) in seen or isinstance(obj, _NOT_SEARCHED):
                continue
            seen.add(id(obj))
            if isinstance(obj, (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)):
                self.generators[path] = obj
            elif depth > 0 and _has_state(path, obj):
                self._samplers[path] = obj
            elif depth < _MAX_DEPTH:
                self._note_epochs(path, obj)
                pending.extend((f"{path}.{name}".lstrip("."), inner, depth + 1) for name, inner in _contents(obj))

    def read(self, *, samplers: bool = False) -> Tree:
        """Read all states, including the process's generators, without advancing any.

        The state of samplers is valid only before a pass: workers run them ahead.
        """
        gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
        return {
            "process": read_process_generators(gpus),
            "generators": {
                path: {"kind": type(generator).__name__, "state": _access(generator)[0]()}
                for path, generator in self.generators.items()
            },
            "epochs": {path: vars(holder).get(name) for path, (holder, name) in self._epochs.items()},
            "samplers": {path: sampler.state_dict() for path, sampler in self._samplers.items()} if samplers else {},
        }

    def set(self, saved: Tree) -> None:
        """Restore all states; missing objects are skipped."""
        for path, state in saved["samplers"].items():
            if path in self._samplers:
                self._samplers[path].load_state_dict(state)
        self._set_epochs(saved, only_unset=False)
        self._set_generators(saved)
        set_process_generators(saved["process"])

    def set_for_next_pass(self, saved: Tree) -> None:
        """Restore the loader's generators, and epoch numbers that the script has not set."""
        self._set_generators(saved)
        self._set_epochs(saved, only_unset=True)

    def _set_generators(self, saved: Tree) -> None:
        for path, state in saved["generators"].items():
            generator = self.generators.get(path)
            if generator is not None and type(generator).__name__ == state["kind"]:
                _access(generator)[1](state["state"])

    def _set_epochs(self, saved: Tree, *, only_unset: bool) -> None:
        for path, number in saved["epochs"].items():
            holder, name = self._epochs.get(path, (None, ""))
            if holder is not None and number is not None and not (only_unset and vars(holder).get(name)):
                setattr(holder, name, number)

    def _note_epochs(self, path: str, obj: Any) -> None:
        for name in _EPOCHS:
            epoch = attributes_of(obj).get(name, ())
            if type(epoch) is int or epoch is None:
                self._epochs[f"{path}.{name}".lstrip(".")] = (obj, name)


def _contents(obj: Any) -> list[tuple[str, Any]]:
    if isinstance(obj, (list, tuple)) or type(obj) is dict:
        items = obj.items() if isinstance(obj, dict) else enumerate(obj)
        return [(str(name), inner) for name, inner in items] if len(obj) <= _MAX_ITEMS else []
    return list(attributes_of(obj).items())


def _has_state(path: str, obj: Any) -> bool:
    """Whether an object is a sampler with a state dict."""
    kind = type(obj)
    named = path.rpartition(".")[2] in ("sampler", "batch_sampler")
    return named and hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict") and not issubclass(kind, nn.Module)


def _access(generator: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """How the state of a generator is read, and set."""
    if isinstance(generator, torch.Generator):
        return generator.get_state, generator.set_state
    if isinstance(generator, np.random.Generator):
        bits: Any = generator.bit_generator
        return lambda: _plain(bits.state), lambda state: setattr(bits, "state", _values(state))
    if isinstance(generator, np.random.RandomState):
        return lambda: _plain(generator.get_state(legacy=False)), lambda state: generator.set_state(_values(state))
    return generator.getstate, lambda state: _set_python(generator, state)


def _set_python(generator: Any, state: Any) -> None:
    version, internal, gauss = state
    generator.setstate((version, tuple(internal), gauss))


def _plain(state: Any) -> Any:
    """A numpy state with its arrays as bytes."""
    return flatten(state, lambda _: Ref(0))


def _values(state: Any) -> Any:
    return unflatten(state, lambda ref: ref)
