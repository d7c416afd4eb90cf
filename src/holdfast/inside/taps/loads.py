"""Other people's loads: which file the script read, and into what it was put.

A file counts once something of it was given to `load_state_dict`: scripts read their samples with `torch.load` too. Nothing is
kept alive: tensors, models and optimizers are held by weak references.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.utils.data import get_worker_info

from holdfast.inside.gradients.non_finite import is_state, tensors_in
from holdfast.inside.observers.checkpoint_log import CheckpointLog
from holdfast.inside.observers.heartbeat import HEARTBEAT
from holdfast.inside.shield import Shield
from holdfast.inside.taps.registry import Taps
from holdfast.signals.lineage import whole_path
from holdfast.signals.pulse import LOADING

_FILES, _TENSORS, _PER_PART, _ASKED = 32, 512, 32, 16  # files, tensors of a file and of a part of it that are remembered; asked
_LOADS = 64  # calls of `load_state_dict` before the first step that are remembered


@dataclass(slots=True, eq=False)
class LoadedFile:
    """A file that was read, and some of the tensors that came from it."""

    path: str
    seconds: float
    tensors: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    told: bool = False


@dataclass(slots=True, eq=False)
class IntoModule:
    """Weights that were put into a module: what of it was not in the file, and what of the file it has no place for."""

    module: weakref.ref[nn.Module]
    file: LoadedFile | None
    missing: frozenset[str]
    unexpected: int


class Loads:
    """Watches `torch.load` and `load_state_dict`."""

    def __init__(self, checkpoint_log: CheckpointLog) -> None:
        self._news = checkpoint_log
        self._files: deque[LoadedFile] = deque(maxlen=_FILES)
        self.modules: deque[IntoModule] = deque(maxlen=_LOADS)
        self._others: dict[int, tuple[weakref.ref[Any], LoadedFile | None]] = {}

    def install(self, taps: Taps, shield: Shield) -> None:
        """Hang it into torch; weights are told by the hook that a guard needs too."""
        read, put = shield(self.was_read), shield(self.put_into)

        def watch_load(original: Callable[..., Any]) -> Callable[..., Any]:
            def load(f: Any, *args: Any, **kwargs: Any) -> Any:
                begun = time.perf_counter()
                with HEARTBEAT.during(LOADING):
                    result = original(f, *args, **kwargs)
                read(f, result, begun)
                return result

            return load

        def watch_state(original: Callable[..., Any]) -> Callable[..., Any]:
            def load_state_dict(thing: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(thing, state_dict, *args, **kwargs)
                put(thing, state_dict)
                return result

            return load_state_dict

        taps.wrap("torch.load", watch_load)
        taps.wrap("torch.serialization.load", lambda _: torch.load)  # the same one: it is pickled by this name
        taps.wrap("torch.optim.Optimizer.load_state_dict", watch_state)
        taps.wrap("torch.amp.GradScaler.load_state_dict", watch_state)

    # Events

    def was_read(self, file: Any, content: Any, begun: float) -> None:
        """`torch.load` gave something."""
        if isinstance(content, torch.Tensor) or not isinstance(content, (dict, nn.Module)) or get_worker_info() is not None:
            return
        path = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", None)
        if not isinstance(path, (str, os.PathLike)) or not is_state(content):
            return
        loaded = LoadedFile(whole_path(path), round(time.perf_counter() - begun, 4))
        loaded.tensors = [weakref.ref(tensor) for tensor in islice(_some_of(content), _TENSORS)]
        self._files.append(loaded)

    def put_into_module(self, module: nn.Module, state: Any, result: Any) -> None:
        """Weights were put into a module."""
        file = self._source_of(state)
        missing, unexpected = getattr(result, "missing_keys", ()), getattr(result, "unexpected_keys", ())
        self.modules.append(IntoModule(weakref.ref(module), file, frozenset(missing), len(unexpected)))

    def put_into(self, thing: Any, state: Any) -> None:
        """A state was put into an optimizer or a gradient scaler."""
        if len(self._others) >= _LOADS:
            self._others = {key: entry for key, entry in self._others.items() if entry[0]() is not None}
        if len(self._others) < _LOADS:
            self._others[id(thing)] = (weakref.ref(thing), self._source_of(state))

    # Questions

    def was_put_into(self, thing: Any) -> bool:
        """Whether this optimizer or scaler was given a state."""
        known = self._others.get(id(thing))
        return known is not None and known[0]() is thing

    def file_for(self, thing: Any) -> LoadedFile | None:
        """Where that state came from."""
        return self._others[id(thing)][1] if self.was_put_into(thing) else None

    def whole_in(self, tensor: torch.Tensor) -> LoadedFile | None:
        """The file in which this very tensor came: a model that was pickled as a whole."""
        return next((file for file in reversed(self._files) if any(known() is tensor for known in file.tensors)), None)

    @property
    def paths(self) -> list[str]:
        """The newest files that were read."""
        return [file.path for file in self._files]

    @property
    def anything(self) -> bool:
        """Whether any state was put into anything."""
        return bool(self.modules or self._others or self._files)

    def _source_of(self, state: Any) -> LoadedFile | None:
        """The file that a state came from: by its tensors; before the first step, else the last one that was read."""
        if not self._files:
            return None
        given = {id(tensor): tensor for _, tensor in islice(tensors_in(state), _ASKED)}
        for file in reversed(self._files):
            if any(given.get(id(tensor)) is tensor for known in file.tensors if (tensor := known()) is not None):
                return self._tell(file)
        return self._tell(self._files[-1]) if self._news.newest() is None else None

    def _tell(self, file: LoadedFile) -> LoadedFile:
        if not file.told:
            file.told = True
            self._news.row("loaded", path=file.path, seconds=file.seconds)
        return file


def _some_of(content: Any) -> Iterable[torch.Tensor]:
    parts = dict.values(content) if isinstance(content, dict) else [content]
    return (tensor for part in parts for _, tensor in islice(tensors_in(part), _PER_PART))
