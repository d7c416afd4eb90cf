"""Track which checkpoint files the script loads, and which modules, optimizers and scalers get their state from them.

A file counts once part of it reaches `load_state_dict`: scripts read samples with `torch.load` too. Tensors, models and
optimizers are held by weak references only.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import get_worker_info

from holdfast.inside.gradients.non_finite import is_state, models_of_trainer, tensors_in
from holdfast.inside.observers.checkpoint_log import CheckpointLog
from holdfast.inside.observers.heartbeat import HEARTBEAT
from holdfast.inside.shield import Shield
from holdfast.inside.taps.registry import Taps, around
from holdfast.signals.lineage import whole_path
from holdfast.signals.pulse import LOADING

_MAX_FILES, _MAX_LOADS = 32, 64  # remembered files, and `load_state_dict` calls before the first step
_TENSORS_PER_FILE, _TENSORS_PER_PART = 512, 32  # remembered, to recognise a file by its tensors
_COMPARED_TENSORS = 16  # of a state dict
_UNPICKLED = 4096
_SEARCHED_PARAMETERS = 4  # of an optimizer, to find the file that a pickled model came from
_ERROR_LENGTH = 200  # characters


@dataclass(slots=True, eq=False)
class LoadedFile:
    """A file that was read, with weak references to some of its tensors."""

    path: str
    seconds: float
    tensors: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    is_logged: bool = False


@dataclass(slots=True, eq=False)
class ModuleLoad:
    """One `load_state_dict` of a module: its missing keys and the number of unexpected ones."""

    module: weakref.ref[nn.Module]
    file: LoadedFile | None
    missing: frozenset[str]
    unexpected: int


class Loads:
    """Watches `torch.load` and `load_state_dict`."""

    def __init__(self, checkpoint_log: CheckpointLog) -> None:
        self._log = checkpoint_log
        self._files: deque[LoadedFile] = deque(maxlen=_MAX_FILES)
        self.modules: deque[ModuleLoad] = deque(maxlen=_MAX_LOADS)
        self._unpickled: deque[weakref.ref[torch.Tensor]] = deque(maxlen=_UNPICKLED)  # parameters from a pickle
        self._objects: dict[int, tuple[weakref.ref[Any], LoadedFile | None]] = {}  # optimizers and scalers

    def install(self, taps: Taps, shield: Shield, *, heals: bool) -> None:
        """Wrap the load functions; hooks.py wraps `Module.load_state_dict`, which the guard needs too. `heals`: the script may be
        restarted, and resume by itself.
        """
        on_file, on_error, on_object = shield(self.file_read), shield(self.file_unreadable), shield(self.object_loaded)

        def wrap_load(original: Callable[..., Any]) -> Callable[..., Any]:
            def load(f: Any, *args: Any, **kwargs: Any) -> Any:
                start = time.perf_counter()
                try:
                    with HEARTBEAT.during(LOADING):
                        result = original(f, *args, **kwargs)
                except Exception as error:
                    on_error(f, error)
                    raise
                on_file(f, result, start)
                return result

            return load

        def wrap_load_state_dict(original: Callable[..., Any]) -> Callable[..., Any]:
            return around(original, on_object, shield(_changes))

        if heals:
            for name in ("_rebuild_parameter", "_rebuild_parameter_with_state"):
                taps.wrap(f"torch._utils.{name}", self._noting_unpickled)
        taps.wrap("torch.load", wrap_load)
        taps.wrap("torch.serialization.load", lambda _: torch.load)  # one object: pickle finds it under this name
        taps.wrap("torch.optim.Optimizer.load_state_dict", wrap_load_state_dict)
        taps.wrap("torch.amp.GradScaler.load_state_dict", wrap_load_state_dict)

    def _noting_unpickled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def rebuild(*args: Any) -> Any:
            parameter = original(*args)
            self._unpickled.append(weakref.ref(parameter))
            return parameter

        return rebuild

    # Events

    def file_read(self, file: Any, content: Any, start: float) -> None:
        """Remember a file that `torch.load` has read, if it holds a state."""
        if get_worker_info() is not None:
            return
        path = _path_of(file)
        if path is not None and is_state(content):
            tensors = [weakref.ref(tensor) for tensor in islice(_sample_tensors(content), _TENSORS_PER_FILE)]
            self._files.append(LoadedFile(path, round(time.perf_counter() - start, 4), tensors))

    def file_unreadable(self, file: Any, error: Exception) -> None:
        """`torch.load` failed: if the script ends with this error, the supervisor learns here which file was damaged."""
        path = _path_of(file)
        if path is not None and get_worker_info() is None and Path(path).is_file():
            self._log.row("unreadable", path=path, error=f"{type(error).__name__}: {error}"[:_ERROR_LENGTH])

    def module_loaded(self, module: nn.Module, state_dict: Any, result: Any) -> None:
        """Remember a `load_state_dict` of a module."""
        missing, unexpected = getattr(result, "missing_keys", ()), getattr(result, "unexpected_keys", ())
        source = self._source_of(state_dict)
        self.modules.append(ModuleLoad(weakref.ref(module), source, frozenset(missing), len(unexpected)))

    def object_loaded(self, changes: bool, target: Any, state_dict: Any, *_args: Any) -> None:
        """Remember a `load_state_dict` of an optimizer or a gradient scaler, if it changes anything."""
        if not changes:
            return
        if len(self._objects) >= _MAX_LOADS:
            self._objects = {key: entry for key, entry in self._objects.items() if entry[0]() is not None}
        if len(self._objects) < _MAX_LOADS:
            self._objects[id(target)] = (weakref.ref(target), self._source_of(state_dict))

    # Queries

    def has_loaded(self, target: Any) -> bool:
        """Whether this optimizer or scaler got a state."""
        entry = self._objects.get(id(target))
        return entry is not None and entry[0]() is target

    def has_unpickled(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Whether one of these came from a pickle, however it was read."""
        own = {id(parameter): parameter for parameter in parameters}
        unpickled = [parameter for reference in self._unpickled if (parameter := reference()) is not None]
        return any(own.get(id(parameter)) is parameter for parameter in unpickled)

    def file_of(self, target: Any) -> LoadedFile | None:
        """The file that the state of this optimizer or scaler came from."""
        return self._objects[id(target)][1] if self.has_loaded(target) else None

    def files_of(self, parameters: Sequence[torch.Tensor]) -> list[str]:
        """The files that the values of these parameters came from, by `load_state_dict` or in a model pickled as a whole."""
        own, files = {id(parameter) for parameter in parameters}, [*map(self.file_with, parameters[:_SEARCHED_PARAMETERS])]
        for load in self.modules:
            module = load.module()
            if module is not None and any(id(parameter) in own for parameter in module.parameters()):
                files.append(load.file)
        return [file.path for file in files if file is not None]

    def file_with(self, tensor: torch.Tensor) -> LoadedFile | None:
        """The file that this tensor object came from: the model was pickled as a whole."""
        return next((file for file in reversed(self._files) if any(ref() is tensor for ref in file.tensors)), None)

    @property
    def paths(self) -> list[str]:
        """The last files that were read."""
        return [file.path for file in self._files]

    def __bool__(self) -> bool:
        return bool(self.modules or self._objects or self._files)

    def _source_of(self, state_dict: Any) -> LoadedFile | None:
        """Find the file of a state dict by its tensors; before the first step the last file read is the fallback."""
        if not self._files:
            return None
        tensors = {id(tensor): tensor for _, tensor in islice(tensors_in(state_dict), _COMPARED_TENSORS)}
        for file in reversed(self._files):
            if any(tensors.get(id(tensor)) is tensor for ref in file.tensors if (tensor := ref()) is not None):
                return self._logged(file)
        return self._logged(self._files[-1]) if self._log.newest() is None else None

    def _logged(self, file: LoadedFile) -> LoadedFile:
        if not file.is_logged:
            file.is_logged = True
            self._log.row("loaded", path=file.path, seconds=file.seconds)
        return file


def _changes(target: Any, state_dict: Any) -> bool:
    """Whether a load brings anything: Accelerate has every new optimizer load its own, still empty state."""
    if not isinstance(target, torch.optim.Optimizer) or not isinstance(state_dict, dict) or state_dict.get("state"):
        return True
    own, new = target.param_groups, state_dict.get("param_groups", ())
    try:
        return len(own) != len(new) or any(
            value != old.get(name)
            for old, group in zip(own, new, strict=True)
            for name, value in group.items()
            if name != "params"
        )
    except Exception:  # noqa: BLE001 - values of a kind that cannot be compared
        return True


def _path_of(file: Any) -> str | None:
    path = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", None)
    return whole_path(path) if isinstance(path, (str, os.PathLike)) else None


def _sample_tensors(content: Any) -> Iterable[torch.Tensor]:
    parts = dict.values(content) if isinstance(content, dict) else [content]
    parts = [model for part in parts for model in models_of_trainer(part) or [part]]
    return (tensor for part in parts for _, tensor in islice(tensors_in(part), _TENSORS_PER_PART))
