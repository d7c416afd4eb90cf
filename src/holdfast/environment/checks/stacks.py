"""May a running training be looked into from outside (backtrace, attach)? Tried on a process of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from holdfast.environment.check import Check, Fix, Verdict, note, ok, skipped, warning
from holdfast.environment.machine import Machine
from holdfast.environment.py_spy import path_of_py_spy

_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_STRANGER = "import subprocess as s; print(s.Popen(['sleep', '20'], start_new_session=True, stdout=-3, stderr=-3).pid)"
_CONTAINER = Fix(
    "give the container the capability (Kubernetes: securityContext.capabilities.add: [SYS_PTRACE])",
    ("docker run --cap-add SYS_PTRACE IMAGE",),
)


def ask(machine: Machine, *, yama: Path = _YAMA) -> Verdict:
    """Open the memory of a process that is not a child, as py-spy does."""
    if machine.platform.system == "Darwin":
        return note("on macOS only root can read another process", Fix("run backtrace as root", ("sudo holdfast backtrace",)))
    if machine.platform.system != "Linux":
        return skipped("stacks can be read on Linux and macOS only")
    refused = try_stranger()
    scope = _number(yama)
    facts = {"ptrace_scope": scope, "refused": refused, "py-spy": path_of_py_spy()}
    if refused is not None:
        return why_refused(refused, scope, machine, facts)
    if facts["py-spy"] is None:
        fix = Fix("install it", ("pip install py-spy",))
        return warning("allowed, but py-spy is not installed: only processes with Holdfast inside give stacks", fix, **facts)
    return ok("stacks of running processes can be read", **facts)


def try_stranger() -> str | None:
    """None if a process that is nobody's child may be read, else the system's word for no."""
    started = subprocess.run([sys.executable, "-Sc", _STRANGER], capture_output=True, text=True, timeout=10, check=False)
    pid = int(started.stdout)
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
    except OSError as error:
        return error.strerror or str(error)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
    return None


def why_refused(refused: str, scope: int | None, machine: Machine, facts: Mapping[str, object]) -> Verdict:
    """The reason for a no, by the kernel's setting and by where this runs."""
    inside = "; runs under Holdfast still report theirs"
    if scope in (1, 2, 3):
        who = {1: "only a parent may look", 2: "only root may look", 3: "nobody may look"}[scope]
        fix = Fix("allow it until the next reboot", ("sudo sysctl kernel.yama.ptrace_scope=0",))
        fixes = (fix, _CONTAINER) if machine.platform.container else (fix,)
        return warning(f"kernel.yama.ptrace_scope is {scope}: {who} into a process{inside}", *fixes, **facts)
    if machine.platform.container:
        return warning(f"this container may not read other processes ({refused}){inside}", _CONTAINER, **facts)
    return warning(
        f"the system does not allow reading other processes ({refused}){inside}",
        Fix("run backtrace as root", ("sudo holdfast backtrace",)),
        **facts,
    )


def _number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return None


CHECK = Check(name="stacks", asks="stacks of running processes", ask=ask, seconds=20.0)
