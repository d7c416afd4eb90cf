"""Fold what says nothing, and tell once what many do: idle helper threads, and processes with the same stacks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.probe.stacks.frames import ProcessStacks, Thread
from holdfast.probe.stacks.locks import waiting_for
from holdfast.probe.stacks.together import rank_words
from holdfast.probe.stacks.whereabouts import is_library, is_ours, own_part

_WAITING = re.compile(
    r"[/\\](threading|queue|selectors|socket|socketserver|connection|queues|resource_sharer|pin_memory|_monitor)\.py$"
)


@dataclass(frozen=True, slots=True)
class Group:
    """Processes that are all in the same place; `first` stands for all of them, the one with native frames if there is one."""

    members: tuple[ProcessStacks, ...]
    shown: tuple[Thread, ...]
    idle: tuple[Thread, ...]

    @property
    def first(self) -> ProcessStacks:
        """The one that is shown."""
        return next(
            (member for member in self.members if any(f.native for t in member.threads for f in t.frames)), self.members[0]
        )

    @property
    def title(self) -> str:
        """`rank 0`, `63 ranks (0-6, 8-63)`, `3 loader workers of rank 0 (0, 2, 3)`."""
        if len(self.members) == 1:
            return self.members[0].role
        if all(member.is_rank for member in self.members):
            return rank_words([member.rank for member in self.members if member.rank is not None])
        if all(member.worker is not None for member in self.members):
            return _worker_words(self.members)
        return f"{len(self.members)} processes: " + ", ".join(member.role for member in self.members[:4])


def group(stacks: Iterable[ProcessStacks], *, all_threads: bool = False) -> list[Group]:
    """Groups in the order of their first process."""
    groups: dict[object, list[ProcessStacks]] = {}
    for stack in stacks:
        groups.setdefault(_key(stack, all_threads), []).append(stack)
    return [_group(tuple(members), all_threads) for members in groups.values()]


def is_idle(thread: Thread) -> bool:
    """Whether a thread only helps and has nothing to do: it waits in a queue, for an event or a connection; or it is ours."""
    if thread.is_main or thread.holds_gil:
        return False
    python = thread.python
    if not python or thread.name.startswith("holdfast") or is_ours(python[0]):
        return True
    if thread.active or waiting_for(thread) is not None:
        return False
    return bool(_WAITING.search(python[0].file)) or all(is_library(frame) for frame in python)


def _group(members: tuple[ProcessStacks, ...], all_threads: bool) -> Group:
    bare = Group(members, (), ())
    shown, idle = _split(bare.first, all_threads)
    return Group(members, shown, idle)


def _split(stacks: ProcessStacks, all_threads: bool) -> tuple[tuple[Thread, ...], tuple[Thread, ...]]:
    idle = () if all_threads else tuple(thread for thread in stacks.threads if is_idle(thread))
    return tuple(thread for thread in stacks.threads if thread not in idle), idle


def _key(stacks: ProcessStacks, all_threads: bool) -> object:
    kind = "rank" if stacks.is_rank else ("worker", stacks.rank) if stacks.worker is not None else stacks.pid
    shown, _ = _split(stacks, all_threads)
    lines = tuple(tuple((f.func, f.file, f.line) for f in own_part(thread)) for thread in shown)
    return kind, stacks.state in ("stopped", "gone"), stacks.problem, lines


def _worker_words(members: Sequence[ProcessStacks]) -> str:
    of = "" if members[0].rank is None else f" of rank {members[0].rank}"
    return f"{len(members)} loader workers{of} ({', '.join(str(member.worker) for member in members)})"
