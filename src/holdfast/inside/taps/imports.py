"""Run a callback on a third-party module: at once if it is imported already, else right after its import."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Callback = Callable[[ModuleType], None]


def when_imported(callbacks: Mapping[str, Callback]) -> None:
    """Call each callback with the module of its name. Errors in a callback are suppressed."""
    for name, callback in callbacks.items():
        if (module := sys.modules.get(name)) is not None:
            with contextlib.suppress(Exception):
                callback(module)
    sys.meta_path.insert(0, _Finder(callbacks))


class _Finder:
    """On `sys.meta_path`: delegates to the other finders and wraps the loader's `exec_module`."""

    def __init__(self, callbacks: Mapping[str, Callback]) -> None:
        self._callbacks = callbacks

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec that the other finders find."""
        if name not in self._callbacks:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                return _with_callback(spec, self._callbacks[name])
        return None


def _with_callback(spec: ModuleSpec, callback: Callback) -> ModuleSpec:
    loader: Any = spec.loader
    if not hasattr(loader, "exec_module") or not hasattr(loader, "__dict__"):
        return spec
    original: Callable[[ModuleType], None] = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        vars(loader).pop("exec_module", None)
        original(module)
        with contextlib.suppress(Exception):
            callback(module)

    loader.exec_module = exec_module
    return spec
