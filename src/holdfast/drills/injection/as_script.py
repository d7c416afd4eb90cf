"""Run a piece of code as if it were the script's own: stacks show a file that is no part of Holdfast, which can be read there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def as_script(function: str, source: str, folder: Path) -> Callable[..., Any]:
    """The function of that name in a source, which is written into the drill's folder."""
    path = folder / f"{function}.py"
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_text(source, encoding="utf-8")
    beside.replace(path)
    names: dict[str, Any] = {"__name__": function, "__file__": str(path)}
    exec(compile(source, str(path), "exec"), names)  # the source is a constant of a fault
    function_object: Callable[..., Any] = names[function]
    return function_object
