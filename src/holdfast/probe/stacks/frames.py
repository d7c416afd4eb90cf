"""What a stack is: frames of threads of processes, as plain values that travel as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Locals = tuple[tuple[str, str], ...]

MAIN = "MainThread"
STOPPED, HELD, ON_DISK = "stopped", "held by a debugger", "waits for a disk"  # states that are told


@dataclass(frozen=True, slots=True)
class Frame:
    """One function on a stack. `line` is 0 where it is not known; `module` is the library of a native frame."""

    func: str
    file: str
    line: int
    module: str | None = None
    native: bool = False
    locals: Locals | None = None

    def local(self, name: str) -> str | None:
        """How a local of this frame looks, if it was read."""
        return next((text for variable, text in self.locals or () if variable == name), None)


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread, innermost frame first.

    `thread` is its number in the system, `active` whether it computes, `call` the system call that it is in ("read FILE").
    """

    pid: int
    thread: int
    name: str
    holds_gil: bool
    active: bool
    frames: tuple[Frame, ...]
    call: str | None = None

    @property
    def python(self) -> tuple[Frame, ...]:
        """The frames of Python functions."""
        return tuple(frame for frame in self.frames if not frame.native)

    @property
    def is_main(self) -> bool:
        """Whether it is the thread that the process began with."""
        return self.thread == self.pid or self.name == MAIN


@dataclass(frozen=True, slots=True)
class ProcessStacks:
    """All threads of one process, or in words why there are none.

    `role` is "rank 0", "rank 0 loader worker 1", "torchrun", …; `by` says who read the stacks: py-spy, faulthandler or
    nobody; `state` is what the system says the process does; `worker` is the number of a loader's worker; `host` is set where
    several machines are looked at together.
    """

    pid: int
    role: str
    rank: int | None = None
    threads: tuple[Thread, ...] = ()
    problem: str | None = None
    by: str = "py-spy"
    state: str = ""
    command: str = ""
    worker: int | None = None
    parent: int | None = None
    host: str = ""

    @property
    def main(self) -> Thread | None:
        """The thread that the process began with; the first one if that cannot be told."""
        return next((thread for thread in self.threads if thread.is_main), self.threads[0] if self.threads else None)

    @property
    def is_rank(self) -> bool:
        """Whether it trains, and is no helper of a process that does."""
        return self.rank is not None and self.worker is None and self.role == f"rank {self.rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """How far a rank is: its step, the step of a look a moment before, seconds since the last step ended, and a usual step's.

    `doing` is what the process itself announced (its pulse: "evaluating", "saving", "collective", "paused"), and `begun` when.
    """

    rank: int
    step: int | None = None
    before: int | None = None
    seconds: float | None = None
    usual: float | None = None
    doing: str | None = None
    begun: float | None = None
    apart: float = field(default=0.0, compare=False)  # seconds between the two looks

    @property
    def moved(self) -> bool:
        """Whether a step ended between the two looks."""
        return self.step is not None and self.before is not None and self.step > self.before


def as_rows(stacks: Iterable[ProcessStacks]) -> list[dict[str, Any]]:
    """The stacks as plain values: one object a process, with its threads and their frames in it."""
    return [asdict(stack) for stack in stacks]


def from_rows(rows: Sequence[Mapping[str, Any]]) -> list[ProcessStacks]:
    """The stacks again, from what `as_rows` made of them; fields that this version does not know are skipped."""
    return [_process(row) for row in rows]


def _process(row: Mapping[str, Any]) -> ProcessStacks:
    fields_of_row = _fields_of(ProcessStacks, row)
    return ProcessStacks(**{**fields_of_row, "threads": tuple(_thread(thread) for thread in row.get("threads") or ())})


def _thread(row: Mapping[str, Any]) -> Thread:
    return Thread(**{**_fields_of(Thread, row), "frames": tuple(_frame(frame) for frame in row.get("frames") or ())})


def _frame(row: Mapping[str, Any]) -> Frame:
    seen = row.get("locals")
    return Frame(**{**_fields_of(Frame, row), "locals": None if seen is None else tuple((str(n), str(v)) for n, v in seen)})


def _fields_of(kind: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name in kind.__dataclass_fields__}
