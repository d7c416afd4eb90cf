"""Limits of the process (ulimit) that end a training half-way: open files, processes, locked memory, core files."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from holdfast.environment.check import Check, Fix, Verdict, note, ok, problem, skipped, together, warning
from holdfast.environment.machine import Machine
from holdfast.units import size

_FEW_FILES, _FILES = 1024, 65_536  # every tensor that comes from a worker holds a file: 1,024 kept ones end the run
_ROOM = 512  # threads and processes that a training with loader workers takes with ease
_CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")
_INFINIBAND = Path("/sys/class/infiniband")


def ask(machine: Machine, *, infiniband: Path = _INFINIBAND, core_pattern: Path = _CORE_PATTERN) -> Verdict:
    """One answer for all limits."""
    try:
        import resource
    except ImportError:
        return skipped("this system has no ulimit")
    limits = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}")) for name in ("nofile", "core")}
    for name in ("memlock", "nproc"):
        if hasattr(resource, f"RLIMIT_{name.upper()}"):
            limits[name] = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))
    facts = {name: _limit_words(soft) for name, (soft, _) in limits.items()}
    verdicts = [
        _files(*limits["nofile"]),
        _processes(limits.get("nproc", (-1, -1))[0], machine),
        _locked(limits.get("memlock", (-1, -1))[0], infiniband),
        _core(limits["core"][0], core_pattern),
    ]
    reported = [verdict for verdict in verdicts if verdict is not None]
    return together(reported) if reported else ok(f"{facts['nofile']} open files; no limit is too low", **facts)


def _files(soft: int, hard: int) -> Verdict | None:
    if soft < 0 or soft > _FEW_FILES:
        return None
    raised = _FILES if hard < 0 or hard >= _FILES else hard
    commands = (f"ulimit -n {raised}",) if raised > soft else ("echo '* - nofile 65536' | sudo tee -a /etc/security/limits.conf",)
    fix = Fix("raise the limit in the shell that starts the training", commands)
    other = Fix("or let workers share memory by name: torch.multiprocessing.set_sharing_strategy('file_system')")
    message = f"only {soft:,} open files: loader workers may fail with 'Too many open files'"
    level = note if soft == _FEW_FILES else warning if soft >= 256 else problem
    return level(message, fix, other, nofile=soft, nofile_hard=_limit_words(hard))


def _processes(soft: int, machine: Machine) -> Verdict | None:
    limits = machine.platform.limits
    places = []
    if soft >= 0 and _geteuid() != 0:  # root is not held to it
        places.append(("ulimit -u", soft, _threads_of_user()))
    if limits.processes is not None:
        places.append(("the control group's pids.max", limits.processes, limits.processes_used or 0))
    for name, limit, used in places:
        if limit - used < _ROOM:
            fix = Fix("allow more", ("ulimit -u 65536",) if name == "ulimit -u" else ("docker run --pids-limit 65536 IMAGE",))
            few = Fix("or use fewer loader workers and threads", ("export OMP_NUM_THREADS=1",))
            level = problem if limit - used < 64 else warning
            message = f"{name} is {limit:,}, {used:,} in use: loader workers fail with 'Resource temporarily unavailable'"
            return level(message, fix, few, processes=limit, processes_used=used)
    return None


def _locked(soft: int, infiniband: Path) -> Verdict | None:
    if soft < 0 or not (infiniband.is_dir() and any(infiniband.iterdir())):
        return None
    fix = Fix("lift it", ("ulimit -l unlimited", "docker run --ulimit memlock=-1 IMAGE"))
    message = f"{size(soft)} may be locked in memory; NCCL over InfiniBand needs more"
    return warning(message, fix, memlock=soft)


def _core(soft: int, core_pattern: Path) -> Verdict | None:
    """Core files as large as all memory, in the training's folder."""
    pattern = ""
    with contextlib.suppress(OSError):
        pattern = core_pattern.read_text().strip()
    if soft == 0 or not pattern or pattern.startswith("|"):
        return None
    fix = Fix("disable them if nobody reads them", ("ulimit -c 0",))
    return note(f"a crash writes a core file ({pattern}) as large as the process's memory", fix, core=_limit_words(soft))


def _threads_of_user() -> int:
    import psutil

    total = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == _geteuid():
                total += process.num_threads()
    return total


def _geteuid() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else -1


def _limit_words(limit: int) -> Any:
    return "unlimited" if limit < 0 or limit >= 1 << 62 else limit


CHECK = Check(name="limits", asks="ulimits: files, processes, locked memory", ask=ask)
