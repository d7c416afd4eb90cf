"""Build the model that a user names, as `package.module:factory` or in a YAML file, to see what weights it wants."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

    from holdfast.matching.sides import Side

_KEYS = ("model", "arguments")


def model_side(text: str, arguments: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None) -> Side:
    """One side from `package.module:factory`. Raises UsageError, in words, for whatever the user's own code raises."""
    from holdfast.matching.from_model import side_of_model

    return side_of_model(build(text, arguments or {}), text, settings)


def side_from_yaml(path: Path) -> Side:
    """One side from a YAML file: `model:` names the factory, `arguments:` are given to it, the rest are settings."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", fix="name a YAML file with a line `model:`") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}.", fix="correct that line") from error
    if not isinstance(content, dict) or not isinstance(content.get("model"), str):
        keys = [str(key) for key in content] if isinstance(content, dict) else []
        near = [key for key in difflib.get_close_matches("model", keys, 1) if key != "model"]
        raise UsageError(
            f"{path} names no model: it has {', '.join(keys) or 'no keys'}.",
            fix=f"{f'write model for {near[0]}' if near else 'add a line'}: `model: package.module:factory`",
        )
    arguments = content.get("arguments") or {}
    if not isinstance(arguments, dict):
        raise UsageError(
            f"`arguments` in {path} is not a table of names.", fix="write each as `  name: value` under `arguments:`"
        )
    settings = {str(key): value for key, value in content.items() if key not in _KEYS}
    return model_side(content["model"], arguments, {**arguments, **settings})


def build(text: str, arguments: Mapping[str, Any]) -> nn.Module:
    """The model: built without memory for its weights where that works, else normally."""
    import torch
    from torch import nn

    made = _find(text)
    if isinstance(made, nn.Module):
        return made
    if not callable(made):
        raise UsageError(
            f"{text} is a {type(made).__name__}, not a function, a class or a model.", fix="name what builds the model"
        )
    _check_arguments(text, made, arguments)

    def on(device: str) -> Any:
        with torch.device(device):
            return made(**arguments)

    try:
        with contextlib.redirect_stdout(sys.stderr):
            model = on("meta")
    except Exception:  # noqa: BLE001  code of the user's, which may want real numbers
        model = _in_words(text, lambda: on("cpu"))
    if not isinstance(model, nn.Module):
        raise UsageError(f"{text} gave a {type(model).__name__}, not a model.", fix="name a function that returns an nn.Module")
    return model


def _find(text: str) -> Any:
    """What the name stands for, with the current folder searched first, as Python does for scripts."""
    module, _, attribute = text.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    target = _in_words(text, lambda: importlib.import_module(module))
    for part in attribute.split("."):
        if not hasattr(target, part):
            names = [name for name in dir(target) if not name.startswith("_")]
            near = difflib.get_close_matches(part, names, 3) or names[:6]
            raise UsageError(f"{module} has no {part}.", fix=f"it has {', '.join(near)}" if near else f"define {part} in it")
        target = getattr(target, part)
    return target


def _check_arguments(text: str, made: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(made)
    except (TypeError, ValueError):
        return
    parameters = signature.parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        for name in arguments:
            if name not in parameters:
                near = difflib.get_close_matches(str(name), list(parameters), 1)
                raise UsageError(
                    f"{text} takes no argument {name}.",
                    fix=f"did you mean {near[0]}" if near else f"it takes {', '.join(parameters) or 'none'}",
                )
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and name not in arguments
    ]
    if missing:
        raise UsageError(
            f"{text} needs {', '.join(missing)}.",
            fix="name a function without required arguments, or a YAML file with `model:` and `arguments:`",
        )


def _in_words(text: str, call: Callable[[], Any]) -> Any:
    """Run code of the user's; what it prints goes to stderr, errors show the last line that it ran."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return call()
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{text} cannot be imported: {error}.",
            fix=f"run this in the folder of your code (now {Path.cwd()}), or install what is missing",
        ) from error
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split()) or "no words"
        raise UsageError(
            f"{text} failed in your code: {type(error).__name__}: {message}{_where(error)}",
            fix="it must build the model when called like this, and must not train when imported",
        ) from error


def _where(error: BaseException) -> str:
    """The last line that ran: file, line and text."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename and "importlib" not in frame.filename] or list(
        frames
    )
    last = own[-1]
    return f"\n  at {last.filename}:{last.lineno}: {last.line}" if last.filename != __file__ else ""
