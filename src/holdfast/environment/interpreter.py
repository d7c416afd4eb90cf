"""Which Python a bare `python` means: the active environment's, else the one that Holdfast runs in, else the first on PATH.

`.venv/bin/holdfast run -- python train.py` means the Python of `.venv`, though nobody has activated it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_OF_PYTHON = re.compile(r"(python|pypy)[0-9.]*|torchrun|accelerate")


def find_program(name: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The path of a program, as a shell would find it with the environment active; None if there is none."""
    on_path = shutil.which(name, path=environment.get("PATH"))
    if "/" in name or not (_OF_PYTHON.fullmatch(name) or on_path is None):
        return on_path
    return shutil.which(name, path=str(_programs_of(environment))) or on_path


def with_own_python(command: Sequence[str]) -> list[str]:
    """The command with that Python in front; any other command as it is.

    With its whole path: a Python that is called by name alone looks itself up on PATH.
    """
    if (
        not command
        or not _OF_PYTHON.fullmatch(command[0])
        or (path := find_program(command[0])) in (None, shutil.which(command[0]))
    ):
        return list(command)
    return [str(path), *command[1:]]


def _programs_of(environment: Mapping[str, str]) -> Path:
    """The folder of the active environment's programs. Conda's base is active in every shell: nobody has chosen it."""
    if active := environment.get("VIRTUAL_ENV"):
        return Path(active) / "bin"
    if (active := environment.get("CONDA_PREFIX")) and environment.get("CONDA_DEFAULT_ENV") != "base":
        return Path(active) / "bin"
    return Path(sys.executable).parent
