"""Arm Holdfast when the script imports torch, then remove the import hook.

A Python process that never imports torch pays for one small object. The finder delegates to the real finders and wraps
only `exec_module` of torch's loader, on that instance and for one execution. So `importlib.util.find_spec("torch")`
without an import changes nothing.
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
    """First on `sys.meta_path` until torch has been imported; also finds `holdfast` where it is not installed.

    Where it is a module of Holdfast that imports torch, that module is finished first: arming may need it.
    """

    def __init__(self) -> None:
        self._depth = 0  # modules of Holdfast whose import is under way
        self._has_torch = self._is_arming = False

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec that the other finders find, for torch and Holdfast with a wrapped loader."""
        if name != "torch" and name.partition(".")[0] != "holdfast":
            return None
        spec = self._find_with_others(name, path, target)
        if name == "holdfast" and (spec is None or spec.origin is None):
            spec = find_own_package()
        return spec if self._is_arming else self._wrap_loader(spec, is_torch=name == "torch")

    def _find_with_others(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                return spec
        return None

    def _wrap_loader(self, spec: ModuleSpec | None, *, is_torch: bool) -> ModuleSpec | None:
        loader: Any = getattr(spec, "loader", None)
        others = vars(loader).get("exec_module") if hasattr(loader, "__dict__") else None  # another tool's, wrapped as here

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            if others is not None:
                loader.exec_module = others
            self._depth += not is_torch
            try:
                loader.exec_module(module)
                self._has_torch |= is_torch
            finally:
                self._depth -= not is_torch
                if self._has_torch and not self._depth:
                    self._arm()

        if hasattr(loader, "exec_module") and hasattr(loader, "__dict__"):
            loader.exec_module = exec_module
        return spec

    def _arm(self) -> None:
        self._is_arming = True
        try:
            from holdfast.inside.arm import arm_from_environment

            arm_from_environment()
        except Exception:  # noqa: BLE001 - the script runs unwatched rather than not at all
            pass
        finally:
            if self in sys.meta_path:
                sys.meta_path.remove(self)


def find_own_package() -> ModuleSpec | None:
    """Find `holdfast` where this file is, and nothing else there: its neighbours belong to another environment."""
    from importlib.machinery import PathFinder

    package = __file__
    for _ in ("site", "inside", "holdfast", "the folder that holds it"):
        package = os.path.dirname(package)  # noqa: PTH120 - pathlib costs every start of Python
    return PathFinder.find_spec("holdfast", [package])


def wait_for_torch() -> None:
    """Install the finder, once; a second Holdfast on the path leaves the first alone."""
    if "torch" not in sys.modules and not any(type(finder).__name__ == "TorchFinder" for finder in sys.meta_path):
        sys.meta_path.insert(0, TorchFinder())
