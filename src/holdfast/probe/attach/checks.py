"""What can be seen from outside of whether Holdfast can get into a process; each obstacle in words, with what helps."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

import psutil

from holdfast.errors import CannotAttach
from holdfast.probe.stacks.permission import facts_about, tracer_of, why_not

_PYTHON = re.compile(r"(^|/)(python[\d.]*[a-z]*|libpython[\d.]+[a-z]*\.(so|dylib)[\d.]*)$")
_A_MOMENT = 4.0  # seconds
_FIX_PYTHON = "name the process that trains: holdfast attach $(pgrep -n -f train.py)"


def check(pid: int) -> psutil.Process:
    """The process, if nothing that can be seen stands in the way. Raises CannotAttach."""
    try:
        process = psutil.Process(pid)
        ended = process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        raise CannotAttach(f"there is no process {pid}.", fix=_FIX_PYTHON) from None
    if ended or pid == os.getpid():
        raise CannotAttach(f"process {pid} has ended." if ended else "that is this command itself.", fix=_FIX_PYTHON)
    if process.status() == psutil.STATUS_STOPPED:
        raise CannotAttach(f"process {pid} is stopped.", fix=f"continue it first: kill -CONT {pid}")
    facts = facts_about(pid)
    if facts.owner is not None:
        raise CannotAttach(f"process {pid} belongs to {facts.owner}.", fix=f"run this as {facts.owner}, or as root")
    if (tracer := _lasting_tracer(pid)) is not None:
        raise CannotAttach(f"process {pid} is traced by a debugger, process {tracer}.", fix="end the debugger first")
    if not is_python(process):
        raise CannotAttach(f"process {pid} ({_command(process)}) is not Python.", fix=_FIX_PYTHON)
    if _other_files(pid):
        raise CannotAttach(
            f"process {pid} runs in a container, where the files of this Holdfast do not exist.",
            fix="install Holdfast in the container and run `holdfast attach` there",
        )
    return process


def _lasting_tracer(pid: int) -> int | None:
    """The debugger that holds a process; who only looks at its stacks is gone in a moment."""
    until = time.monotonic() + _A_MOMENT
    while (tracer := tracer_of(pid)) is not None and time.monotonic() < until:
        time.sleep(0.05)
    return tracer


def is_python(process: psutil.Process) -> bool:
    """Whether a process is an interpreter, or has one in it."""
    with contextlib.suppress(OSError, psutil.Error):
        if _PYTHON.search(process.exe()):
            return True
        if Path("/proc/self/maps").exists():
            return any(_PYTHON.search(line.rpartition(" ")[2]) for line in _maps(process.pid))
        return any(_PYTHON.search(mapped.path) for mapped in process.memory_maps())
    return False


def refused(pid: int) -> CannotAttach:
    """The system does not let it be traced: what is missing."""
    reason = why_not("operation not permitted", facts_about(pid))
    return CannotAttach(f"process {pid} may not be traced: {reason}.", fix="as named above; the process continues unchanged")


def _maps(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()


def _other_files(pid: int) -> bool:
    """Whether the process sees other files than we do."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/ns/mnt").readlink() != Path("/proc/self/ns/mnt").readlink()
    return False


def _command(process: psutil.Process) -> str:
    try:
        line = " ".join(" ".join(process.cmdline()).split()) or process.name()
    except psutil.Error:
        return "?"
    return line if len(line) <= 50 else line[:49] + "…"
