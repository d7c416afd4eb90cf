"""Do something with a module of somebody else's as soon as it is there: at once if it was imported, else when it will be."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Use = Callable[[ModuleType], None]


def when_imported(uses: Mapping[str, Use]) -> None:
    """Call each with the module of its name. An error in there is passed over: the script goes on without it."""
    for name, use in uses.items():
        if (module := sys.modules.get(name)) is not None:
            with contextlib.suppress(Exception):
                use(module)
    sys.meta_path.insert(0, _Listener(uses))


class _Listener:
    """On `sys.meta_path`: lets the real finders load a module, with an ear at the loader."""

    def __init__(self, uses: Mapping[str, Use]) -> None:
        self._uses = uses

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """What the other finders say."""
        if name not in self._uses:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                return self._listen_to(spec, self._uses[name])
        return None

    def _listen_to(self, spec: ModuleSpec, use: Use) -> ModuleSpec:
        loader: Any = spec.loader
        if not hasattr(loader, "exec_module") or not hasattr(loader, "__dict__"):
            return spec
        original: Callable[[ModuleType], None] = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            original(module)
            with contextlib.suppress(Exception):
                use(module)

        loader.exec_module = exec_module
        return spec
