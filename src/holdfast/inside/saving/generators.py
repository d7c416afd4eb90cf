"""What decides which batches come: random number generators, epoch numbers and samplers with a state, wherever a loader has them.

They are looked for in the loader's own attributes, and in those of its samplers, its data set and its transforms; nothing of
theirs is called but `state_dict()` of a sampler. A generator is named by the way to it: "sampler.generator".
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data.dataloader import _BaseDataLoaderIter

from holdfast.inside.snapshots.plain import attributes_of
from holdfast.inside.snapshots.randomness import read_randomness, set_randomness

Plain = dict[str, Any]
_EPOCHS = ("epoch", "_epoch", "iteration")  # how samplers, data sets and loaders call the number that goes into their seed
_LONGEST = 64  # things in a container that is looked into: a list of a million samples holds no generators
_DEEPEST, _MOST = 7, 2000
_CLOSED = (
    *(str, bytes, int, float, complex, type(None), type, torch.Tensor, np.ndarray, torch.dtype, torch.device),
    *(FunctionType, BuiltinFunctionType, MethodType, ModuleType, _BaseDataLoaderIter),
)


class Origins:
    """What was found in a loader."""

    def __init__(self, loader: Any) -> None:
        self.generators: dict[str, Any] = {}
        self._epochs: dict[str, tuple[Any, str]] = {}
        self._samplers: dict[str, Any] = {}
        seen: set[int] = set()
        waiting = deque([("", loader, 0)])
        while waiting and len(seen) < _MOST:
            path, thing, depth = waiting.popleft()
            if id(thing) in seen or isinstance(thing, _CLOSED):
                continue
            seen.add(id(thing))
            if isinstance(thing, (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)):
                self.generators[path] = thing
            elif depth > 0 and _has_state(path, thing):
                self._samplers[path] = thing
            elif depth < _DEEPEST:
                self._note_epochs(path, thing)
                waiting.extend((f"{path}.{name}".lstrip("."), inner, depth + 1) for name, inner in _inside(thing))

    def read(self, *, samplers: bool = False) -> Plain:
        """The state of all of them and of the process's own generators, in plain containers; nothing is moved.

        That of samplers is worth something only before a pass: workers have them run ahead.
        """
        gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
        return {
            "process": read_randomness(gpus),
            "generators": {path: _read_generator(generator) for path, generator in self.generators.items()},
            "epochs": {path: vars(holder).get(name) for path, (holder, name) in self._epochs.items()},
            "samplers": {path: sampler.state_dict() for path, sampler in self._samplers.items()} if samplers else {},
        }

    def set(self, saved: Plain) -> None:
        """Make all of them what they were. One that is not there any more is left out."""
        for path, state in saved["samplers"].items():
            if path in self._samplers:
                self._samplers[path].load_state_dict(state)
        for path, number in saved["epochs"].items():
            if path in self._epochs and number is not None:
                holder, name = self._epochs[path]
                setattr(holder, name, number)
        self.set_generators(saved)
        set_randomness(saved["process"])

    def set_generators(self, saved: Plain) -> None:
        """Set the loader's own generators only."""
        for path, state in saved["generators"].items():
            generator = self.generators.get(path)
            if generator is not None and type(generator).__name__ == state["kind"]:
                _set_generator(generator, state["state"])

    def count_on(self, saved: Plain) -> None:
        """Set epoch numbers that have not moved yet; one that the script has set for the pass to come is left alone."""
        for path, number in saved["epochs"].items():
            holder, name = self._epochs.get(path, (None, ""))
            if holder is not None and number is not None and not vars(holder).get(name):
                setattr(holder, name, number)

    def _note_epochs(self, path: str, thing: Any) -> None:
        for name in _EPOCHS:
            number = attributes_of(thing).get(name, ())
            if type(number) is int or number is None:
                self._epochs[f"{path}.{name}".lstrip(".")] = (thing, name)


def _inside(thing: Any) -> list[tuple[str, Any]]:
    if isinstance(thing, (list, tuple)):
        return [(str(number), inner) for number, inner in enumerate(thing)] if len(thing) <= _LONGEST else []
    if type(thing) is dict:
        return [(str(name), inner) for name, inner in thing.items()] if len(thing) <= _LONGEST else []
    return list(attributes_of(thing).items())


def _has_state(path: str, thing: Any) -> bool:
    """Whether it is a sampler that keeps and takes a state of its own."""
    kind = type(thing)
    named = path.rpartition(".")[2] in ("sampler", "batch_sampler")
    return named and hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict") and not issubclass(kind, nn.Module)


def _read_generator(generator: Any) -> Plain:
    if isinstance(generator, torch.Generator):
        state: Any = generator.get_state()
    elif isinstance(generator, np.random.Generator):
        state = _walk(generator.bit_generator.state, _to_plain)
    elif isinstance(generator, np.random.RandomState):
        state = _walk(generator.get_state(legacy=False), _to_plain)
    else:
        state = generator.getstate()
    return {"kind": type(generator).__name__, "state": state}


def _set_generator(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = _walk(state, _from_plain)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(_walk(state, _from_plain))
    else:
        version, numbers, gauss = state
        generator.setstate((version, tuple(numbers), gauss))


def _walk(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    changed = leaf(tree)
    if changed is tree and isinstance(tree, dict):
        return {name: _walk(inner, leaf) for name, inner in tree.items()}
    return changed


def _to_plain(value: Any) -> Any:
    """An array as its bytes and its kind; a number of numpy's as a plain one."""
    if isinstance(value, np.ndarray):
        return {"bytes": torch.from_numpy(np.frombuffer(value.tobytes(), np.uint8).copy()), "dtype": value.dtype.str}
    return value.item() if isinstance(value, np.generic) else value


def _from_plain(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"bytes", "dtype"}:
        return np.frombuffer(value["bytes"].numpy().tobytes(), np.dtype(value["dtype"])).copy()
    return value
