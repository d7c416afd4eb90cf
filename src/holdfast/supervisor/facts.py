"""What `run.json` tells about a run: its machine, interpreter, ranks, code version and packages.

All of it is optional: a fact that cannot be had cheaply is skipped, and none is worth an error.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import socket
import subprocess
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.signals.lineage import script_place

_GIT_SECONDS = 2.0
_PACKAGES = ("torch", "numpy")
_RANKS_OPTION = re.compile(r"--(nproc[-_]per[-_]node|nnodes|num[-_]processes|max[-_]restarts)(?:=(.*))?$")


def facts_at_start(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """What is known without looking further."""
    facts = {
        "command": list(command),
        "cwd": _working_folder(),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "python": interpreter_of(command),
        "world_size": world_size_of(command, environment),
        "script": _content_of(command),
        "gpus_hidden": environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1") or None,
    }
    return {key: value for key, value in facts.items() if value is not None}


def _content_of(command: Sequence[str]) -> str | None:
    """What a script holds, as a checksum: a copy of it elsewhere is the same script."""
    place = script_place(command)
    with contextlib.suppress(OSError):
        return None if place is None else f"{zlib.crc32(Path(command[place]).read_bytes()):08x}"
    return None


def facts_later(command: Sequence[str]) -> dict[str, Any]:
    """What takes a moment (git, installed packages): asked for after the training has started."""
    facts = {"git": git_state(), "packages": package_versions(command)}
    return {key: value for key, value in facts.items() if value}


def default_name(command: Sequence[str], stamp: str) -> str:
    """The script's name and the time: `train-1115-031205`."""
    place = script_place(command) or 0
    word = command[place]
    stem = word.rsplit(".", 1)[-1] if place and command[place - 1] in ("-m", "--module") else Path(word).stem
    return f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', stem).strip('-.')[:60] or 'run'}-{stamp}"


def interpreter_of(command: Sequence[str]) -> str | None:
    """The path of the Python that the command starts with, if it does."""
    if not re.match(r"(python|pypy)[0-9.]*$", Path(command[0]).name):
        return None
    path = shutil.which(command[0])
    return None if path is None else os.path.abspath(path)  # noqa: PTH100 - a venv's link must not be followed


def world_size_of(command: Sequence[str], environment: Mapping[str, str]) -> int | None:
    """How many ranks will train, from the launcher's options or the environment; None if that is not said."""
    launcher = next((Path(word).name for word in command if Path(word).name in _LAUNCHERS), None)
    if launcher is None:
        text = environment.get("WORLD_SIZE", "")
        return int(text) if text.isdecimal() else None
    options = _ranks_options(command)
    if launcher == "accelerate":
        return _whole(options.get("num_processes"))
    each, nodes = _whole(options.get("nproc_per_node", "1")), _whole(options.get("nnodes", "1"))
    return each * nodes if each and nodes else None


def is_elastic(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether torchrun may start the ranks again by itself: `--max-restarts`, or a number of nodes that may change."""
    restarts = _ranks_options(command).get("max_restarts", environment.get("PET_MAX_RESTARTS", "0"))
    return (_whole(restarts) or 0) > 0 or may_lose_nodes(command, environment)


def may_lose_nodes(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether torchrun may continue with fewer nodes: `--nnodes 1:2`."""
    return ":" in _ranks_options(command).get("nnodes", environment.get("PET_NNODES", ""))


_LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate")


def git_state() -> dict[str, Any] | None:
    """The commit that is checked out here, and whether files differ from it."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        commit = _git("rev-parse", "HEAD").strip()
        state: dict[str, Any] = {"commit": commit}
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            state["dirty"] = bool(_git("status", "--porcelain", "--untracked-files=no").strip())
        return state
    return None


def package_versions(command: Sequence[str]) -> dict[str, str]:
    """Versions in the environment that the command's program belongs to, by the names of their metadata folders."""
    program = shutil.which(command[0])
    if program is None:
        return {}
    versions = {}
    with contextlib.suppress(OSError):
        for folder in Path(program).absolute().parent.parent.glob("lib/python3*/site-packages/*.dist-info"):
            name, _, version = folder.stem.partition("-")
            if name in _PACKAGES:
                versions[name] = version
    return versions


def _git(*command: str) -> str:
    done = subprocess.run(
        ["git", "--no-optional-locks", *command],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=_GIT_SECONDS,
        check=True,
    )
    return done.stdout.decode(errors="replace")


def _ranks_options(command: Sequence[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for word, following in zip(command, (*command[1:], ""), strict=True):
        if match := _RANKS_OPTION.match(word):
            options.setdefault(match[1].replace("-", "_"), following if match[2] is None else match[2])
        elif word.endswith(".py"):
            break
    return options


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _working_folder() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:
        return None
