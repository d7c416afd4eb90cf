"""Arm Holdfast when the script imports torch, and vanish.

Nothing is imported before that: a Python process that never imports torch pays for one small object. The finder asks
the real finders for torch and lets them load it; only the loader's `exec_module` is wrapped, for one execution, on
the one instance. `importlib.util.find_spec("torch")` without an import therefore changes nothing.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing `typing` costs more than all of this file
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class TorchFinder:
    """First on `sys.meta_path` until torch has been imported; also finds `holdfast` where it is not installed."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """What the other finders say, with an ear at torch's loader."""
        if name == "torch":
            return self._listen_to(self._ask_others(name, path, target))
        if name == "holdfast":
            found = self._ask_others(name, path, target)
            return found if found is not None and found.origin is not None else find_own_package()
        return None

    def _ask_others(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            found: ModuleSpec | None = find(name, path, target) if find is not None else None
            if found is not None:
                return found
        return None

    def _listen_to(self, spec: ModuleSpec | None) -> ModuleSpec | None:
        loader: Any = getattr(spec, "loader", None)

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            loader.exec_module(module)
            self._torch_is_here()

        if hasattr(loader, "exec_module") and hasattr(loader, "__dict__"):
            loader.exec_module = exec_module
        return spec

    def _torch_is_here(self) -> None:
        try:
            from holdfast.inside.arm import arm_from_environment

            arm_from_environment()
        except Exception:  # noqa: BLE001 - the script goes on unwatched rather than not at all
            pass
        finally:
            if self in sys.meta_path:
                sys.meta_path.remove(self)


def find_own_package() -> ModuleSpec | None:
    """`holdfast` from where this file lies, and nothing else from there: its neighbours are another environment's."""
    from importlib.machinery import PathFinder

    package = __file__
    for _ in ("site", "inside", "holdfast", "the folder that holds it"):
        package = os.path.dirname(package)  # noqa: PTH120 - pathlib costs every start of Python
    return PathFinder.find_spec("holdfast", [package])


def wait_for_torch() -> None:
    """Put the finder in place, once; a second Holdfast on the path finds the first and leaves it alone."""
    if "torch" not in sys.modules and not any(type(finder).__name__ == "TorchFinder" for finder in sys.meta_path):
        sys.meta_path.insert(0, TorchFinder())
