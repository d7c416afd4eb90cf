"""What the stacks of a run say, and what it was read from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.probe.stacks.frames import Frame, ProcessStacks, RankProgress, Thread

WRONG = ("hang", "loader-stall", "collective-stall", "stopped")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where it is stuck, and what that means.

    `code` is a finding's ("hang", "loader-stall", "collective-stall"), or one of: "moving" (steps go by), "stopped"
    (SIGSTOP), "paused" (a debugger or a question at the terminal), "busy" (importing, compiling, saving), "running" (it
    computes; whether it gets on cannot be told), "waiting" (it waits, which may be all right), "unseen" (no stack could be
    read). `pid`, `rank` and `frame` name the process, thread and frame that the others wait for.
    """

    code: str
    say: str
    pid: int | None = None
    rank: int | None = None
    thread: str | None = None
    frame: Frame | None = None
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def is_wrong(self) -> bool:
        """Whether it will not get on by itself."""
        return self.code in WRONG


@dataclass(frozen=True, slots=True)
class Look:
    """The newest stacks of all processes, an earlier look at the same, and how far each rank is."""

    now: Sequence[ProcessStacks]
    before: Sequence[ProcessStacks] = ()
    state: Sequence[RankProgress] = ()

    @property
    def trainers(self) -> list[ProcessStacks]:
        """The ranks; without any, the process at the top, or else all that are no workers."""
        ranks = [stack for stack in self.now if stack.is_rank]
        return (
            ranks
            or [stack for stack in self.now if stack.worker is None and stack.role == f"process {stack.pid}"]
            or list(self.now[:1])
        )

    def earlier(self, stacks: ProcessStacks) -> ProcessStacks | None:
        """The same process in the look before."""
        return next((other for other in self.before if (other.host, other.pid) == (stacks.host, stacks.pid)), None)

    def earlier_thread(self, stacks: ProcessStacks, thread: Thread) -> Thread | None:
        """The same thread in the look before."""
        other = self.earlier(stacks)
        return next((t for t in other.threads if t.thread == thread.thread), None) if other is not None else None

    def progress(self, rank: int | None) -> RankProgress | None:
        """How far a rank is; the one that there is if only one process trains."""
        return next((progress for progress in self.state if progress.rank == rank), None)

    def workers(self, stacks: ProcessStacks) -> list[ProcessStacks]:
        """The loader workers of a process."""
        near = [other for other in self.now if other.worker is not None and other.host == stacks.host]
        return [other for other in near if other.parent == stacks.pid or (stacks.is_rank and other.rank == stacks.rank)]

    def since(self, stacks: ProcessStacks, doing: str) -> str:
        """Since when a rank does what it announced, for the middle of a sentence; empty if it announced something else."""
        progress = self.progress(stacks.rank)
        if progress is None or progress.doing != doing or not progress.begun:
            return ""
        return f" since {time.strftime('%H:%M:%S', time.localtime(progress.begun))}"

    def silent(self, stacks: ProcessStacks) -> str:
        """How long there was no step, for the end of a sentence."""
        progress = self.progress(stacks.rank)
        if progress is None or progress.seconds is None:
            return ""
        return f" No step for {_seconds(progress.seconds)} (the last was {progress.step})."


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s" if value < 120 else f"{value / 60:.0f} min"
