"""The command for a training that a test names: a script, the words of a command, or a function to call in a separate process."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import UsageError

Train = str | Path | Sequence[str] | Callable[[], Any]
_CALL = """import importlib, importlib.util, sys
sys.path += [path for path in {path!r} if path not in sys.path]
try:
    module = importlib.import_module({module!r})
except ImportError:
    spec = importlib.util.spec_from_file_location({module!r}, {file!r})
    module = importlib.util.module_from_spec(spec)
    sys.modules[{module!r}] = module
    spec.loader.exec_module(module)
for name in {name!r}.split("."):
    module = getattr(module, name)
module()
"""
_MAIN = "holdfast_drilled"  # what the main program is called where another one is


def command_for(train: Train) -> tuple[str, ...]:
    """The command that runs it."""
    if isinstance(train, (str, Path)):
        if not Path(train).is_file():
            raise UsageError(f"there is no script {train}.", fix='name a file, or a command as a list: ["python", "-m", "mine"]')
        return sys.executable, str(Path(train).absolute())
    if callable(train):
        return _call(train)
    command = tuple(str(word) for word in train)
    if not command:
        raise UsageError("the command is empty.", fix='name a command as a list: ["python", "train.py"]')
    return command


def name_of(train: Train) -> str:
    """A short name for folders and tables."""
    if isinstance(train, (str, Path)):
        return Path(train).stem
    if callable(train):
        return str(getattr(train, "__name__", "training"))
    scripts = (Path(str(word)).stem for word in train if str(word).endswith(".py"))
    return next(scripts, Path(str(train[0])).name)


def _call(train: Callable[[], Any]) -> tuple[str, ...]:
    """Another process finds the function by the name of its module and its own."""
    name, module = getattr(train, "__qualname__", ""), sys.modules.get(getattr(train, "__module__", "") or "")
    why = _why_not(train, name, module)
    if why:
        raise UsageError(
            f"{name or train!r} cannot be called in a separate process: {why}.",
            fix="define a function without parameters at the top of a module, or name a script",
        )
    assert module is not None
    called = _MAIN if module.__name__ == "__main__" else module.__name__
    text = _CALL.format(
        path=[path for path in sys.path if path], module=called, file=getattr(module, "__file__", None), name=name
    )
    return sys.executable, "-c", text


def _why_not(train: Callable[[], Any], name: str, module: object) -> str:
    if "<lambda>" in name:
        return "a lambda has no name to find it by"
    if "<locals>" in name:
        return "it is defined inside another function, where no other process can find it"
    if not name or module is None or getattr(module, "__file__", None) is None:
        return "it is in no module that could be imported"
    if inspect.ismethod(train) and not inspect.isclass(train.__self__):
        return "it is a method of an object that lives in this process only"
    needed = [
        parameter.name
        for parameter in inspect.signature(train).parameters.values()
        if parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    return f"it needs {', '.join(needed)}" if needed else ""
