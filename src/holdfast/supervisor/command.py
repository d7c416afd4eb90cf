"""What stands behind `holdfast run`: find the file to execute, or say in words why there is none."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.environment.interpreter import find_program, with_own_python
from holdfast.errors import CommandNotFound, UsageError


@dataclass(frozen=True, slots=True)
class Command:
    """The words as the process will see them, and the file that is executed. `note` tells of a Python other than PATH's."""

    arguments: tuple[str, ...]
    path: str
    note: str = ""

    def through_an_interpreter(self) -> Command:
        """The same file, run by Python or the shell: what a shell does with a script that has no `#!` line."""
        interpreter = sys.executable if self.path.endswith(".py") else "/bin/sh"
        return Command((interpreter, self.path, *self.arguments[1:]), interpreter)


def find_command(arguments: Sequence[str]) -> Command:
    """Look a command up as a shell would; `train.py` that is no program of its own runs with this Python."""
    if not arguments or not arguments[0]:
        raise UsageError("there is no command after `run`.", fix="add one: holdfast run -- python train.py")
    first = arguments[0]
    path = find_program(first)
    if path is not None:
        meant = tuple(with_own_python(arguments))
        return Command(meant, path, note="" if meant[0] == first else f" ({first} = {path})")
    if first.endswith(".py") and Path(first).is_file():
        return Command((sys.executable, *arguments), sys.executable)
    raise _not_startable(first)


def _not_startable(first: str) -> UsageError:
    path = Path(first)
    if "/" in first and path.is_dir():
        return UsageError(f"{first} is a folder.", fix="name a program or a script: holdfast run -- python train.py")
    if "/" in first and path.exists():
        return UsageError(f"{first} is not executable.", fix=f"chmod +x {first}, or use bash {first}")
    if "/" not in first and path.is_file():
        fix = f"such a file exists here: use ./{first}, or bash {first}"
        return CommandNotFound(f"there is no command {first}.", fix=fix)
    near = difflib.get_close_matches(path.name, _names_near(path), n=1)
    fix = f"did you mean {_beside(path, near[0])}?" if near else "check the spelling, and that its environment is active"
    return CommandNotFound(f"there is no command {first}.", fix=fix)


def _names_near(path: Path) -> list[str]:
    """What could have been meant: files in the folder that was named, or here and on PATH."""
    if path.parent != Path():
        return _names_in(path.parent)
    folders = [Path(entry) for entry in os.environ.get("PATH", os.defpath).split(os.pathsep) if entry]
    scripts = [name for name in _names_in(Path()) if name.endswith((".py", ".sh"))]
    return [*scripts, *(name for folder in folders for name in _names_in(folder))]


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names are all that is needed of thousands of files
    except OSError:
        return []


def _beside(path: Path, name: str) -> str:
    return name if path.parent == Path() else str(path.parent / name)
