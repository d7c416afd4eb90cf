"""Why a process may not be read, in words, with the setting or capability that is missing."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

_CAP_SYS_PTRACE = 19
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_DENIED = re.compile(r"permission denied|operation not permitted|os error 13\b|os error 1\b|EPERM", re.IGNORECASE)
_GONE = re.compile(r"no such (file|process)|os error 3\b|os error 2\b", re.IGNORECASE)
_NOT_PYTHON = re.compile(r"find python version|not a python|find.*interpreter", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What decides about reading another process. `owner` is set if it is another user's, `tracer` if a debugger holds it."""

    linux: bool = True
    yama: int | None = None
    may_trace: bool = False
    container: bool = False
    owner: str | None = None
    tracer: int | None = None
    alive: bool = True


def denied(text: str) -> bool:
    """Whether an error of py-spy is about permission."""
    return bool(_DENIED.search(text))


def why_not(text: str, facts: Facts) -> str:
    """The reason in words, from what py-spy said and what this machine allows."""
    if not facts.alive or (_GONE.search(text) and not denied(text)):
        return "the process has ended"
    if denied(text):
        return _missing(facts)
    if _NOT_PYTHON.search(text):
        return "not a Python process"
    return text


def _missing(facts: Facts) -> str:
    if facts.tracer is not None:
        return f"a debugger (process {facts.tracer}) traces it already"
    if facts.owner is not None:
        return f"it belongs to user {facts.owner}: run this as {facts.owner} or as root (capability CAP_SYS_PTRACE)"
    if not facts.linux:
        return "macOS lets only root read another process: run this with sudo"
    if facts.container and not facts.may_trace and facts.yama in (None, 0):
        return _CONTAINER
    if facts.yama == 3:
        return "kernel.yama.ptrace_scope is 3: no process may be traced until this machine is rebooted with a lower value"
    if facts.yama in (1, 2) and not facts.may_trace:
        who = "only a parent may trace a process" if facts.yama == 1 else "only root may trace a process"
        inside = f"; in a container also: {_CAPABILITY}" if facts.container else ""
        fix = f"sudo sysctl kernel.yama.ptrace_scope=0{inside}, or run this as root"
        return f"kernel.yama.ptrace_scope is {facts.yama}: {who}. {fix}"
    if not facts.may_trace:
        return "capability CAP_SYS_PTRACE is missing here, and the process has more privileges than this user: run this as root"
    return "the system does not allow tracing it (a security module or seccomp filter may forbid ptrace)"


_CAPABILITY = "docker run --cap-add SYS_PTRACE, or in Kubernetes securityContext.capabilities.add: [SYS_PTRACE]"
_CONTAINER = f"this container has no capability CAP_SYS_PTRACE: {_CAPABILITY}"


def facts_about(pid: int) -> Facts:
    """Look at what this machine allows for one process."""
    return Facts(
        linux=sys.platform == "linux",
        yama=_number(_YAMA),
        may_trace=may_trace(),
        container=_in_container(),
        owner=_other_owner(pid),
        tracer=tracer_of(pid),
        alive=psutil.pid_exists(pid),
    )


def may_trace() -> bool:
    """Whether this process has the capability to trace any other."""
    with contextlib.suppress(OSError, ValueError):
        match = re.search(r"^CapEff:\s*([0-9a-f]+)", Path("/proc/self/status").read_text(), re.MULTILINE)
        return match is not None and bool(int(match[1], 16) >> _CAP_SYS_PTRACE & 1)
    return os.geteuid() == 0


def tracer_of(pid: int) -> int | None:
    """The debugger that holds a process, if one does."""
    with contextlib.suppress(OSError, ValueError):
        match = re.search(r"^TracerPid:\s*(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return int(match[1]) or None if match else None
    return None


def _other_owner(pid: int) -> str | None:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.uids().real != os.geteuid() and os.geteuid() != 0:
            return str(process.username())
    return None


def _in_container() -> bool:
    if any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv")) or "KUBERNETES_SERVICE_HOST" in os.environ:
        return True
    with contextlib.suppress(OSError):
        return any(mark in Path("/proc/1/cgroup").read_text() for mark in ("docker", "kubepods", "containerd", "lxc"))
    return False


def _number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return None
