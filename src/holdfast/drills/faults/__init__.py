"""The built-in faults, one file each, named like the code."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from holdfast.drills.fault import Fault
from holdfast.errors import UsageError


@cache
def every() -> tuple[str, ...]:
    """The codes of all built-in faults."""
    return tuple(sorted(file.stem.replace("_", "-") for file in Path(__file__).parent.glob("[a-z]*.py")))


def find(code: str, source: str = "") -> type[Fault]:
    """The class of a fault: built-in, or from a user's file."""
    if source:
        return in_file(Path(source), code)
    if code not in every():
        close = difflib.get_close_matches(code, every(), n=3)
        raise UsageError(f"unknown fault {code!r}.", fix=f"name one of: {', '.join(close or every())}")
    (fault,) = _faults_in(importlib.import_module(f"{__name__}.{code.replace('-', '_')}"))
    return fault


def in_file(path: Path, code: str = "") -> type[Fault]:
    """The fault of a user's own file; of several, the one with that code."""
    for fault in all_in_file(path):
        if code in ("", fault.code):
            return fault
    raise UsageError(f"{path} has no fault {code!r}.", fix="the file must hold a class that derives from holdfast.drills.Fault")


def all_in_file(path: Path) -> list[type[Fault]]:
    """All faults of a user's own file."""
    name = f"holdfast_drill_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(
            f"there is no Python file {path}.", fix="name a file with a class that derives from holdfast.drills.Fault"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return _faults_in(module)


def _faults_in(module: ModuleType) -> list[type[Fault]]:
    kinds = [thing for thing in vars(module).values() if isinstance(thing, type) and issubclass(thing, Fault)]
    return [kind for kind in kinds if kind.__module__ == module.__name__ and "code" in vars(kind)]
