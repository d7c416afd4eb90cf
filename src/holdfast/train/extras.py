"""Packages that only some commands need: imported when they are used, and named with their pip command where they are missing."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from types import ModuleType

from holdfast.errors import UsageError


def required(module: str, *, extra: str) -> ModuleType:
    """Import an optional package. Missing, or its own part of it missing: an error with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise UsageError(f"{package} is not installed ({error}).", fix=f"pip install 'holdfast[{extra}]'") from None


def check_installed(packages: Iterable[str], *, task: str) -> None:
    """Raise UsageError where a package of a task is not there; nothing is imported."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            name = package.replace("_", "-")
            raise UsageError(
                f"holdfast train {task} needs {name}, which is not installed.", fix=f"pip install 'holdfast[{task}]'"
            )
