"""Which processes belong to a run on this machine, and what each of them is."""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from holdfast.probe.alive import lives, same_process
from holdfast.signals.run_folder import Recording, RunFolder

_LOADER_ROWS = 256
_OURS = ("holdfast.supervisor", "holdfast.cli", "py-spy")  # Holdfast's own processes say nothing about the training
_LAUNCHERS = (
    ("torchrun", ("torchrun", "torch.distributed.run", "torch/distributed/run.py", "torch.distributed.launch")),
    ("accelerate launch", ("accelerate launch", "accelerate.commands.launch")),
    ("deepspeed launcher", ("deepspeed.launcher",)),
)
_HELPERS = (
    ("resource tracker", ("multiprocessing.resource_tracker",)),
    ("fork server", ("multiprocessing.forkserver",)),
    ("compile worker", ("torch._inductor.compile_worker", "torch/_inductor/compile_worker")),
)


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a run. `gone` is a rank whose process has ended; `state` is what the system says it does."""

    pid: int
    role: str
    rank: int | None = None
    worker: int | None = None
    parent: int | None = None
    command: str = ""
    state: str = ""
    gone: bool = False


def processes_of(run: RunFolder) -> list[Member]:
    """The processes of a run on this machine: ranks, then the workers of each, then what started them."""
    ranks, gone = _ranks(run)
    info = run.info()
    roots = set(ranks)
    if not info.get("ended") and same_process(info.get("pid"), info.get("started"), info.get("host")):
        roots.add(int(info["pid"]))
    workers = functools.cache(lambda: _workers(run))
    members = {member.pid: member for pid in roots for member in _tree(pid, ranks, workers)}
    order = sorted(members.values(), key=_order)
    return [*order, *(Member(pid, f"rank {rank}", rank, gone=True) for pid, rank in gone if order)]


def tree_of(pid: int) -> list[Member]:
    """A process that belongs to no run, and everything below it."""
    return sorted(
        {member.pid: member for member in _tree(pid, {}, dict)}.values(), key=lambda member: (member.pid != pid, _order(member))
    )


def _order(member: Member) -> tuple[bool, int, bool, int, int]:
    numbered = member.worker if member.worker is not None else 1 << 30
    return member.rank is None, member.rank or 0, member.role != f"rank {member.rank}", numbered, member.pid


def _ranks(run: RunFolder) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Processes that train, with their rank; and those of ranks that have ended while nobody took their place."""
    living: dict[int, int] = {}
    ended: dict[int, int] = {}
    for recording in _recordings(run):
        info = recording.info()
        pid = info.get("pid")
        if isinstance(pid, int) and info.get("host", socket.gethostname()) == socket.gethostname():
            if lives(info):
                living[pid] = recording.rank
            else:
                ended[recording.rank] = pid
    return living, [(pid, rank) for rank, pid in ended.items() if rank not in living.values()]


def _recordings(run: RunFolder) -> list[Recording]:
    try:
        return run.recordings()
    except OSError:
        return []


def _workers(run: RunFolder) -> dict[int, int]:
    """Loader workers that the tables know: number by process id. Read when a rank has a child, for it loads numpy."""
    from holdfast.probe.rows import last_rows

    by_pid: dict[int, int] = {}
    for recording in _recordings(run):
        rows = last_rows(recording.path, "loader", ("worker", "pid"), _LOADER_ROWS)
        by_pid |= {int(pid): int(worker) for worker, pid in zip(rows["worker"], rows["pid"], strict=True) if worker >= 0 < pid}
    return by_pid


def _tree(root: int, ranks: dict[int, int], workers: Callable[[], dict[int, int]]) -> Iterable[Member]:
    try:
        top = psutil.Process(root)
        below = top.children(recursive=True)
    except psutil.Error:
        return
    seen: dict[int, Member] = {}
    for process in (top, *below):
        if (member := _member(process, ranks, workers, seen)) is not None:
            seen[member.pid] = member
            yield member


def _member(
    process: psutil.Process, ranks: dict[int, int], workers: Callable[[], dict[int, int]], above: dict[int, Member]
) -> Member | None:
    """What a process is; None for one that ended just now, and for Holdfast's own."""
    try:
        command, state, parent = process.cmdline(), process.status(), process.ppid()
    except psutil.AccessDenied:
        command, state, parent = [], "", 0
    except psutil.Error:
        return None
    line = " ".join(command)
    if any(name in line for name in _OURS) and process.pid not in ranks:
        return None
    member = Member(process.pid, "", parent=parent, command=line, state=state)
    if process.pid in ranks:
        rank = ranks[process.pid]
        return replace(member, role=f"rank {rank}", rank=rank)
    owner = above.get(parent)
    if owner is not None and owner.rank is not None and (number := workers().get(process.pid)) is not None:
        return as_worker(replace(member, rank=owner.rank), number)
    return replace(member, **_role(process, command, line, owner))


def as_worker(member: Member, worker: int) -> Member:
    """The same process, known to be a loader's worker."""
    of = "" if member.rank is None else f"rank {member.rank} "
    return replace(member, role=f"{of}loader worker {worker}", worker=worker)


def _role(process: psutil.Process, command: list[str], line: str, owner: Member | None) -> dict[str, Any]:
    for role, marks in _LAUNCHERS:
        if any(mark in line for mark in marks):
            return {"role": role}
    if owner is not None and owner.rank is not None:
        return {"role": f"rank {owner.rank} {_helper(command, line)}", "rank": owner.rank}
    rank = _announced_rank(process)
    if rank is not None and _is_python(command):
        return {"role": f"rank {rank}", "rank": rank}
    return {"role": _helper(command, line) if owner is not None else f"process {process.pid}"}


def _helper(command: list[str], line: str) -> str:
    for role, marks in _HELPERS:
        if any(mark in line for mark in marks):
            return role
    return "child process" if _is_python(command) else f"child {Path(command[0]).name}" if command else "child process"


def _is_python(command: list[str]) -> bool:
    return bool(command) and "python" in Path(command[0]).name.lower()


def _announced_rank(process: psutil.Process) -> int | None:
    """The rank that the launcher gave to a process which has not trained yet."""
    with contextlib.suppress(psutil.Error, OSError):
        rank = process.environ().get("RANK", "")
        return int(rank) if rank.isdigit() else None
    return None
