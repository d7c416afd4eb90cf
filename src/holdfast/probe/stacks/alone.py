"""What one process is stuck in: a lock, C code that holds the interpreter lock, a loop, a system call."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from holdfast.probe.stacks.frames import Frame, ProcessStacks, Thread
from holdfast.probe.stacks.locks import Wait, circle, waits
from holdfast.probe.stacks.system_call import RUNNING
from holdfast.probe.stacks.verdict import Look, Verdict
from holdfast.probe.stacks.whereabouts import (
    doing,
    is_library,
    native_name,
    native_part,
    package_of,
    place,
    source_line,
    user_frame,
)

_BUSY = (  # parts of file names on the stack, and what they mean
    ("importing modules", ("<frozen importlib",)),
    ("compiling", ("torch/_dynamo/", "torch/_inductor/", "triton/compiler/", "torch/_functorch/")),
    ("saving or loading a checkpoint", ("torch/serialization.py", "torch/distributed/checkpoint/", "safetensors/")),
)
_ANNOUNCED = ("evaluating", "saving", "loading", "compiling", "catching-up", "ending")  # phases of the pulse
_DEBUGGERS = ("/pdb.py", "/bdb.py", "debugpy/", "pydevd", "IPython/core/debugger", "IPython/terminal/")
_FOR_A_THREAD = ("/threading.py", "/queue.py", "/concurrent/futures/_base.py", "/multiprocessing/pool.py")
_FOR_AN_ITEM = re.compile(r"\.(get|put|wait|result|join|recv|select|poll)\(")  # of a queue, an event: no lock
_NEVER_MOVES = 3.0  # times a usual step, after which a step that has not come is worth a word


def alone_verdict(look: Look) -> Verdict:
    """The first thing that holds up a process; that it runs or waits, if nothing is wrong with that."""
    verdicts = [verdict for trainer in look.trainers for verdict in (_of_process(look, trainer),) if verdict is not None]
    wrong = [verdict for verdict in verdicts if verdict.is_wrong]
    if wrong or verdicts:
        return (wrong or verdicts)[0]
    unread = next((trainer for trainer in look.trainers if trainer.problem), None)
    if unread is not None:
        return Verdict("unseen", f"{unread.role} could not be read: {unread.problem}.", unread.pid, unread.rank)
    return Verdict("unseen", "there is no Python function on any stack.")


def locked(look: Look, stacks: ProcessStacks) -> Verdict | None:
    """That a process waits for a lock, or compiled code in it holds the interpreter's; None if neither."""
    return _locked(look, stacks) or _holds_gil(look, stacks)


def whereabouts(stacks: ProcessStacks) -> str:
    """Where a process is, as the end of a sentence: `is in read() of a pipe in read_config() (train.py:13)`."""
    if stacks.state == "gone":
        return f"has ended (process {stacks.pid})"
    if stacks.main is None:
        return f"could not be read ({stacks.problem})"
    if stacks.state in ("stopped", "held by a debugger"):
        return f"is {stacks.state} (process {stacks.pid})"
    frame = user_frame(stacks.main)
    activity = doing(stacks.main) or ("runs" if stacks.main.active else "waits")
    return f"{activity} in {place(frame)}" if frame is not None else activity


def busy_with(thread: Thread) -> str | None:
    """Something long that is known to end: compiling, importing, saving."""
    files = [frame.file for frame in thread.python]
    return next((word for word, marks in _BUSY if any(mark in file for mark in marks for file in files)), None)


def in_debugger(thread: Thread) -> bool:
    """Whether someone stepped in: pdb, an IDE's debugger."""
    return any(mark in frame.file for mark in _DEBUGGERS for frame in thread.python[:12]) and not thread.active


def _of_process(look: Look, stacks: ProcessStacks) -> Verdict | None:
    rules: tuple[Callable[[Look, ProcessStacks], Verdict | None], ...] = (_locked, _holds_gil, _busy, _loops, _waits)
    return next((verdict for rule in rules for verdict in (rule(look, stacks),) if verdict is not None), None)


def _locked(look: Look, stacks: ProcessStacks) -> Verdict | None:
    lock_waits = waits(stacks, look.earlier(stacks))
    round_ = circle(lock_waits)
    if len(round_) > 1:
        parts = [f"{_name(w.thread)} waits for {_lock(w)} in {place(w.frame)}, {_since(w, now=False)}" for w in round_]
        say = f"{_whose(stacks)}deadlock: {'; '.join(parts)}. Neither can continue.{look.silent(stacks)}"
        lines = [{"thread": w.thread.name, "lock": w.lock, "file": w.frame.file, "line": w.frame.line} for w in round_]
        return _verdict("hang", say, stacks, round_[0].thread, round_[0].frame, {"kind": "deadlock", "waits": lines})
    if (held_up := _held_up(look, stacks, lock_waits)) is not None:
        return held_up
    mine = next((wait for wait in lock_waits if wait.thread is stacks.main), None)
    if mine is None or not _stood(look, stacks, mine.thread):
        return None
    evidence = {"kind": "lock", "lock": mine.lock, "holder": mine.holder.name if mine.holder else None}
    say = f"{stacks.role} waits for {_lock(mine)} in {place(mine.frame)}, {_since(mine)}.{look.silent(stacks)}"
    return _verdict("hang", say, stacks, mine.thread, mine.frame, evidence)


def _held_up(look: Look, stacks: ProcessStacks, lock_waits: list[Wait]) -> Verdict | None:
    """The main thread waits for another thread, and holds the lock that another thread waits for."""
    main = stacks.main
    wait = next((wait for wait in lock_waits if wait.holder is main and wait.thread is not main), None)
    if main is None or wait is None or main.active or not _stood(look, stacks, main):
        return None
    frame, inner = user_frame(main), main.python[0].file.replace("\\", "/")
    if frame is None or not inner.endswith(_FOR_A_THREAD):
        return None
    say = (
        f"{_whose(stacks)}deadlock: {_name(wait.thread)} waits for {_lock(wait)} in {place(wait.frame)}, "
        f"{_since(wait, now=False)}, which waits for a thread in {place(frame)}. Neither can continue.{look.silent(stacks)}"
    )
    lines = [{"thread": wait.thread.name, "lock": wait.lock, "file": wait.frame.file, "line": wait.frame.line}]
    return _verdict("hang", say, stacks, main, frame, {"kind": "deadlock", "waits": lines})


def _lock(wait: Wait) -> str:
    return "a lock" if wait.lock == "a lock" else f"lock `{wait.lock}`"


def _since(wait: Wait, *, now: bool = True) -> str:
    if wait.holder is None:
        return "which no visible thread holds: it was acquired and never released"
    at = place(wait.held_at) if wait.held_at is not None else "?"
    if wait.holder is wait.thread:
        return f"which it holds itself since {at}: a Lock cannot be acquired twice"
    frame = user_frame(wait.holder)
    inside = now and frame is not None and (wait.held_at is None or frame.func != wait.held_at.func)
    return f"held by {_name(wait.holder)} since {at}" + (f", now in {place(frame)}" if inside and frame is not None else "")


def _name(thread: Thread) -> str:
    return "the main thread" if thread.is_main else f"thread {thread.name or thread.thread}"


def _holds_gil(look: Look, stacks: ProcessStacks) -> Verdict | None:
    thread = next((t for t in stacks.threads if t.holds_gil), None)
    before = look.earlier_thread(stacks, thread) if thread is not None else None
    if thread is None or (look.before and (before is None or not before.holds_gil)):
        return None
    native, frame = native_part(thread), user_frame(thread)
    waits_ = not (thread.active and (before is None or before.active))  # being read wakes a thread up for an instant
    if frame is None or not (native or waits_) or not _stood(look, stacks, thread):
        return None
    name = native_name(thread)
    code = f"{name} ({package_of(native[0])})" if name and native else "C code"
    text = source_line(frame)
    say = (
        f"{_whose(stacks)}{_name(thread)} is in C code that holds the interpreter lock: {code}, called in {place(frame)}"
        f"{f': `{text}`' if text else ''}. No other Python thread of it can run.{look.silent(stacks)}"
    )
    return _verdict("hang" if overdue(look, stacks) else "running", say, stacks, thread, frame, {"kind": "gil", "native": name})


def _busy(look: Look, stacks: ProcessStacks) -> Verdict | None:
    main, progress = stacks.main, look.progress(stacks.rank)
    announced = progress.doing if progress is not None and progress.doing in _ANNOUNCED else None
    if main is None or (activity := busy_with(main) or announced) is None:
        return None
    frame = user_frame(main)
    where = f", in {place(frame)}" if frame is not None and not is_library(frame) else ""
    say = f"{stacks.role} is {activity}{look.since(stacks, activity)}{where}.{look.silent(stacks)}"
    return _verdict("busy", say, stacks, main, frame, {"kind": activity})


def _loops(look: Look, stacks: ProcessStacks) -> Verdict | None:
    """A thread that computes: the function that both looks have in common is where it goes round."""
    main = stacks.main
    before = look.earlier_thread(stacks, main) if main is not None else None
    if main is None or not _computes(main, before):
        return None
    frame = _common(main, before)
    if frame is None:
        return None
    late = overdue(look, stacks)
    looks = " in both looks" if before is not None else ""
    why = ": an endless loop, or one very long computation" if late else "; the stack does not show whether it progresses"
    text = source_line(frame)
    say = f"{stacks.role} runs in {place(frame)}{looks}{why}.{f' The line: `{text}`.' if text else ''}{look.silent(stacks)}"
    return _verdict("hang" if late else "running", say, stacks, main, frame, {"kind": "loop"})


def _computes(main: Thread, before: Thread | None) -> bool:
    """Whether a thread runs: in both looks, or in one of them if it has moved; a thread that waits wakes up when it is read.

    On a busy machine, one that waits for its turn to run Python looks idle in some looks, though it is in no system call.
    """
    runs = [thread.active or thread.holds_gil or thread.call == RUNNING for thread in (main, before) if thread is not None]
    return all(runs) or (any(runs) and before is not None and _at(before) != _at(main))


def _common(main: Thread, before: Thread | None) -> Frame | None:
    """The innermost function of the user's that is on both stacks."""
    if before is None:
        return user_frame(main)
    earlier = {(f.func, f.file) for f in before.python}
    own = [f for f in main.python if not is_library(f)] or list(main.python)
    return next((f for f in own if (f.func, f.file) in earlier), own[0] if own else None)


def _waits(look: Look, stacks: ProcessStacks) -> Verdict | None:
    main = stacks.main
    frame = user_frame(main) if main is not None else None
    if main is None or frame is None:
        return None
    text = source_line(frame)
    in_c = main.call == "futex" and doing(main) is None and frame == main.python[0] and not _FOR_AN_ITEM.search(text or "")
    lock = ", where compiled code waits for a lock or a signal of another thread" if in_c else ""
    say = f"{stacks.role} {whereabouts(stacks)}{f': `{text}`' if text else ''}{lock}.{look.silent(stacks)}"
    wrong = overdue(look, stacks) and _stood(look, stacks, main)
    evidence = {"kind": "wait", "doing": doing(main), **({"lock_in_c": True} if in_c else {})}
    return _verdict("hang" if wrong else "waiting", say, stacks, main, frame, evidence)


def _stood(look: Look, stacks: ProcessStacks, thread: Thread) -> bool:
    """Whether a thread is where it was in the look before; true if there was none."""
    before = look.earlier_thread(stacks, thread)
    if not look.before:
        return True
    return before is not None and _at(before) == _at(thread)


def _at(thread: Thread) -> list[tuple[str, str, int]]:
    return [(f.func, f.file, f.line) for f in thread.python]


def overdue(look: Look, stacks: ProcessStacks) -> bool:
    """Whether the next step should have come: it has stepped before, and not for some times a usual step."""
    progress = look.progress(stacks.rank)
    if progress is None or progress.seconds is None or progress.moved:
        return False
    return progress.seconds > _NEVER_MOVES * (progress.usual or 0.0) + 0.5


def _whose(stacks: ProcessStacks) -> str:
    return f"{stacks.role}: " if stacks.role else ""


def _verdict(
    code: str, say: str, stacks: ProcessStacks, thread: Thread, frame: Frame | None, evidence: Mapping[str, object]
) -> Verdict:
    where = {"file": frame.file, "line": frame.line, "func": frame.func} if frame is not None else {}
    return Verdict(code, say, stacks.pid, stacks.rank, thread.name, frame, {**evidence, **where})
