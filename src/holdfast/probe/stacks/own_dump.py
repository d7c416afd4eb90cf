"""The fall-back where no process may be read from outside: the process writes its own stacks.

Over the control socket of the run first: nothing in the process notices. If that does not answer (it hangs, or the interpreter
lock is held) by a signal that faulthandler answers; a C function that sleeps at that moment may return early, as with any signal.
"""

from __future__ import annotations

import re
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.probe.control_client import ask
from holdfast.probe.stacks.frames import MAIN, Frame, Thread
from holdfast.probe.stacks.members import Member
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.stack_signal import own_stacks

_SHORTLY, _IN_TURN = 0.5, 3.0  # seconds; on a busy machine it may not be its turn for a while
_DEAF = ("stopped", "tracing-stop", "disk-sleep")  # states of a process in which it does not answer
_HEAD = re.compile(r"^(?:Current thread|Thread) (?P<ident>0x[0-9a-f]+)(?: \[(?P<name>.*?)\])? .*most recent call first")
_FRAME = re.compile(r'^\s+File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<func>.*)$')


def ask_itself(run: RunFolder, member: Member) -> tuple[Thread, ...]:
    """The stacks that the process writes when asked; none if it cannot be asked."""
    runs = member.state == "running"
    if dump := _over_control(run, member, _SHORTLY, runs=runs):
        return dump
    parents = () if member.parent is None else (member.parent,)
    text = own_stacks(run, member.pid, parents, seconds=_SHORTLY if member.state in _DEAF else _IN_TURN)
    return parse(text, member.pid, runs=runs) if text else ()


def parse(text: str, pid: int, *, runs: bool = False) -> tuple[Thread, ...]:
    """Threads from what faulthandler writes. The last one of the text is the oldest: the one that the process began with.

    `runs` says whether that one computes, which faulthandler does not know.
    """
    heads: list[tuple[str, str]] = []
    frames: list[list[Frame]] = []
    for line in text.splitlines():
        if head := _HEAD.match(line):
            heads.append((head["ident"], head["name"] or ""))
            frames.append([])
        elif frames and (match := _FRAME.match(line)):
            number = match["line"]
            frames[-1].append(Frame(match["func"], match["file"], int(number) if number.isdigit() else 0))
    threads = []
    for index, ((ident, name), stack) in enumerate(zip(heads, frames, strict=True)):
        oldest = index == len(heads) - 1
        number = pid if oldest else int(ident, 16)
        threads.append(Thread(pid, number, MAIN if oldest else name, False, oldest and runs, tuple(stack)))
    return tuple(reversed(threads))


def _over_control(run: RunFolder, member: Member, seconds: float, *, runs: bool) -> tuple[Thread, ...]:
    for recording in reversed(run.recordings()):
        if recording.info().get("pid") == member.pid:
            try:
                answer = ask(recording, {"do": "stacks"}, seconds=seconds)
            except (HoldfastError, OSError):
                return ()
            threads = [_thread(row, member.pid, runs) for row in answer.get("threads") or ()]
            return tuple(sorted(threads, key=lambda thread: not thread.is_main))
    return ()


def _thread(row: dict[str, Any], pid: int, runs: bool) -> Thread:
    frames = tuple(Frame(str(func), str(file), int(line)) for func, file, line in row.get("frames") or ())
    name = str(row.get("name") or "")
    return Thread(pid, int(row.get("native_id") or row.get("ident") or 0), name, False, name == MAIN and runs, frames)
