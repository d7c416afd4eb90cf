"""Take the stacks of a run: every process of it on this machine, at the same time, each within its limit.

Everybody is read quickly first, Python functions only. Native frames cost a second where a stack is in torch's libraries, so
they are read of one process of each kind: sixty-four ranks that wait in the same line have the same native frames. A second look
(`after` is the first) knows the kinds already, and reads the native frames of each as soon as it has been read at all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import psutil

from holdfast.probe.stacks.frames import HELD, ON_DISK, STOPPED, Frame, ProcessStacks, Thread, as_rows, from_rows
from holdfast.probe.stacks.loading import idle_worker
from holdfast.probe.stacks.members import Member, as_worker, processes_of, tree_of
from holdfast.probe.stacks.own_dump import ask_itself
from holdfast.probe.stacks.permission import denied, facts_about, why_not
from holdfast.probe.stacks.spy import Refused, read_with_spy
from holdfast.probe.stacks.system_call import system_call
from holdfast.signals.run_folder import RunFolder

__all__ = ["Frame", "Member", "ProcessStacks", "Thread", "as_rows", "from_rows", "processes_of", "take_of_process", "take_stacks"]

_SECONDS = 1.3
_NATIVE_AT_MOST = 8
_STATES = {psutil.STATUS_STOPPED: STOPPED, psutil.STATUS_TRACING_STOP: HELD, psutil.STATUS_DISK_SLEEP: ON_DISK}
_STANDING = (STOPPED, HELD, ON_DISK)  # stopping them for the reading would fail, or never end
_ALWAYS_KEPT = {  # locals that say which sample a loader's worker is at; others only if they are asked for
    "_worker_loop": ("worker_id", "index", "idx"),
    "fetch": ("possibly_batched_index", "idx"),
    "<listcomp>": ("idx",),
}
One = TypeVar("One")
Other = TypeVar("Other")


def take_stacks(
    run: RunFolder,
    *,
    native: bool = True,
    locals_: bool = False,
    seconds: float = _SECONDS,
    after: Sequence[ProcessStacks] = (),
) -> list[ProcessStacks]:
    """Stacks of all processes of the run on this machine, ranks first. A process that cannot be read says why."""
    return _take(processes_of(run), run, native=native, locals_=locals_, seconds=seconds, after=after)


def take_of_process(
    pid: int, *, native: bool = True, locals_: bool = False, after: Sequence[ProcessStacks] = ()
) -> list[ProcessStacks]:
    """The same for a process that belongs to no run, and for those it started."""
    return _take(tree_of(pid), None, native=native, locals_=locals_, seconds=_SECONDS, after=after)


def _take(
    members: Sequence[Member],
    run: RunFolder | None,
    *,
    native: bool,
    locals_: bool,
    seconds: float,
    after: Sequence[ProcessStacks],
) -> list[ProcessStacks]:
    until = time.monotonic() + seconds
    at_once = {after[index].pid for index in _one_of_each_kind(after)} if native else set()
    taken = _together(lambda member: (_best if member.pid in at_once else _one)(member, run, until), members, more=len(at_once))
    if native and not at_once:
        taken = _with_native(taken, until)
    return [stack if locals_ else _without_locals(stack) for stack in taken]


def _together(job: Callable[[One], Other], those: Sequence[One], *, more: int = 0) -> list[Other]:
    """All of them, some at a time; `more` of them take long, and must not keep the others waiting."""
    if not those:
        return []
    many = min(len(those), 2 * (os.cpu_count() or 1) + more)
    with ThreadPoolExecutor(many, thread_name_prefix="holdfast-stacks") as pool:
        return list(pool.map(job, those))


def _best(member: Member, run: RunFolder | None, until: float) -> ProcessStacks:
    """One process, quickly first, and then with native frames; whoever is not done in time keeps what is known."""
    stack = _one(member, run, until)
    return _native(stack, until) if _can_be_held(stack) else stack


def _one(member: Member, run: RunFolder | None, until: float) -> ProcessStacks:
    """One process, Python functions only, with the locals."""
    state = _STATES.get(member.state, member.state)
    empty = ProcessStacks(
        member.pid, member.role, member.rank, (), None, "nobody", state, member.command, member.worker, member.parent
    )
    if member.gone:
        return replace(empty, problem="the process has ended", state="gone")
    if state == psutil.STATUS_ZOMBIE:
        return replace(empty, problem="the process has ended (zombie)", state="gone")
    read = read_with_spy(member.pid, native=False, locals_=True, stop=state not in _STANDING, seconds=until - time.monotonic())
    if isinstance(read, Refused) and not denied(read.text):
        read = _once_more(member, read, until)
    if not isinstance(read, Refused):
        return _named(replace(empty, threads=tuple(_with_call(thread) for thread in read), by="py-spy"), member)
    problem = why_not(read.text, facts_about(member.pid))
    own = ask_itself(run, member) if run is not None and member.command and problem != "not a Python process" else ()
    return _named(replace(empty, threads=own, problem=problem, by="faulthandler" if own else "nobody"), member)


def _once_more(member: Member, refused: Refused, until: float) -> tuple[Thread, ...] | Refused:
    """Without holding it and without locals: a process that starts, stops or ends just now may be read so."""
    if "python version" in refused.text or not psutil.pid_exists(member.pid):
        return refused
    return read_with_spy(member.pid, native=False, locals_=False, stop=False, seconds=max(until - time.monotonic(), 0.3))


def _with_call(thread: Thread) -> Thread:
    return thread if thread.active else replace(thread, call=system_call(thread.pid, thread.thread))


def _named(stacks: ProcessStacks, member: Member) -> ProcessStacks:
    """A loader's worker is known by what it runs, where the tables do not know it."""
    loop = next((f for t in stacks.threads for f in t.frames if f.func == "_worker_loop"), None)
    if loop is None or stacks.worker is not None or stacks.is_rank:
        return stacks
    number = loop.local("worker_id") or ""
    if not number.isdigit():
        return replace(stacks, role=stacks.role.replace("child process", "loader worker"))
    worker = as_worker(member, int(number))
    return replace(stacks, role=worker.role, worker=worker.worker)


def _with_native(taken: list[ProcessStacks], until: float) -> list[ProcessStacks]:
    """Native frames for one process of each kind; whoever is not done in time keeps what is known."""
    chosen = _one_of_each_kind(taken)
    for index, better in zip(chosen, _together(lambda i: _native(taken[i], until), chosen), strict=True):
        taken[index] = better
    return taken


def _one_of_each_kind(taken: Sequence[ProcessStacks]) -> list[int]:
    """Which processes to read with native frames; workers without work and what started the ranks are not worth the time."""
    ranked = any(stack.rank is not None for stack in taken)
    kinds: dict[object, int] = {}
    for index, stack in enumerate(taken):
        wanted = (stack.rank is not None or not ranked) and not (stack.worker is not None and idle_worker(stack))
        if wanted and _can_be_held(stack):
            kinds.setdefault(_kind(stack), index)
    return list(kinds.values())[:_NATIVE_AT_MOST]


def _can_be_held(stacks: ProcessStacks) -> bool:
    return stacks.by == "py-spy" and bool(stacks.threads) and stacks.state not in _STANDING


def _kind(stacks: ProcessStacks) -> object:
    return tuple(tuple((f.func, f.file, f.line) for f in thread.frames) for thread in stacks.threads)


def _native(stacks: ProcessStacks, until: float) -> ProcessStacks:
    read = read_with_spy(stacks.pid, native=True, locals_=True, seconds=until - time.monotonic())
    if isinstance(read, Refused) or not any(thread.frames for thread in read):
        return stacks
    return replace(stacks, threads=tuple(_with_call(thread) for thread in read))


def _without_locals(stacks: ProcessStacks) -> ProcessStacks:
    return replace(stacks, threads=tuple(replace(t, frames=tuple(_spared(f) for f in t.frames)) for t in stacks.threads))


def _spared(frame: Frame) -> Frame:
    wanted = _ALWAYS_KEPT.get(frame.func.rpartition(".")[2], ()) if "torch" in Path(frame.file).parts else ()
    kept = tuple((name, text) for name, text in frame.locals or () if name in wanted)
    return replace(frame, locals=kept or None)
