"""Who waits for which lock, and who holds it: read from the source, as the system does not say who owns a lock of Python.

A thread waits for the lock that its line names (`with lock:`, `lock.acquire()`), and holds those whose `with` block it is in,
or that its function acquired before. Names are compared as they are written.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.probe.stacks.frames import Frame, ProcessStacks, Thread
from holdfast.probe.stacks.whereabouts import is_library

_IN_ACQUIRE = re.compile(r"lock_acquire|acquire_lock|lock_PyThread|rlock_|RLock|PyMutex_Lock|acquire_timed|_PySemaphore")
_LARGEST = 4 << 20


@dataclass(frozen=True, slots=True)
class Wait:
    """A thread that waits for a lock: what the lock is called, where, and who holds it since which frame."""

    thread: Thread
    frame: Frame
    lock: str
    holder: Thread | None = None
    held_at: Frame | None = None


def waiting_for(thread: Thread) -> tuple[str, Frame] | None:
    """The lock that a thread waits for, if that is what it does: its innermost Python function is at the line that takes it."""
    if thread.active or not thread.python:
        return None
    frame = thread.python[0]
    names = [native.func for native in thread.frames[: len(thread.frames) - len(thread.python)] if native.native]
    by_native = any(_IN_ACQUIRE.search(name) for name in names)
    if is_library(frame) or not (by_native or thread.call == "futex"):
        return None
    taken = _taken_at(frame)
    return (taken[-1], frame) if taken else ("a lock", frame) if by_native else None


def waits(process: ProcessStacks, earlier: ProcessStacks | None = None) -> list[Wait]:
    """All threads of a process that wait for a lock, with the thread that holds it where the source tells.

    `earlier` is a look at it a moment before: being read wakes a thread up for an instant, so that one look may miss its wait.
    """
    before = {thread.thread: thread for thread in earlier.threads} if earlier is not None else {}
    lock_waits = []
    for thread in process.threads:
        was = before.get(thread.thread)
        stood = was if was is not None and _lines(was) == _lines(thread) else None
        if (wanted := waiting_for(thread) or (waiting_for(stood) if stood is not None else None)) is not None:
            lock, frame = wanted
            holder, since = _holder(lock, thread, process.threads)
            lock_waits.append(Wait(thread, frame, lock, holder, since))
    return lock_waits


def _lines(thread: Thread) -> list[tuple[str, str, int]]:
    return [(frame.func, frame.file, frame.line) for frame in thread.python]


def circle(lock_waits: Sequence[Wait]) -> list[Wait]:
    """Waits that wait for each other in a circle: a deadlock; empty if there is none."""
    by_thread = {wait.thread.thread: wait for wait in lock_waits}
    for start in lock_waits:
        path: list[Wait] = []
        wait: Wait | None = start
        while wait is not None and wait not in path:
            path.append(wait)
            wait = by_thread.get(wait.holder.thread) if wait.holder is not None else None
        if wait is start:
            return path
    return []


def _holder(lock: str, waiter: Thread, threads: Sequence[Thread]) -> tuple[Thread | None, Frame | None]:
    """The thread that is inside of that lock; another one rather than the waiter itself."""
    for thread in sorted(threads, key=lambda thread: thread is waiter):
        for frame in thread.python:
            if not is_library(frame):
                for name, line in _held_at(frame):
                    if _same(name, lock):
                        return thread, Frame(frame.func, frame.file, line)
    return None, None


def _same(name: str, other: str) -> bool:
    return name == other or name.rpartition(".")[2] == other.rpartition(".")[2]


def _taken_at(frame: Frame) -> list[str]:
    """The locks that are taken in this very line."""
    names = []
    for node in _function(frame):
        if isinstance(node, (ast.With, ast.AsyncWith)):
            plain = [i.context_expr for i in node.items if isinstance(i.context_expr, (ast.Name, ast.Attribute, ast.Subscript))]
            names += [ast.unparse(lock) for lock in plain if _covers(lock, frame.line)]
        elif isinstance(node, ast.Call) and _covers(node, frame.line) and _method(node) == "acquire":
            names.append(_owner(node))
    return names


def _held_at(frame: Frame) -> Iterator[tuple[str, int]]:
    """Locks that a function holds at its line, and since which line."""
    acquired: dict[str, int] = {}
    for node in sorted(_function(frame), key=lambda node: getattr(node, "lineno", 0)):
        if isinstance(node, ast.With) and node.body[0].lineno <= frame.line <= (node.end_lineno or 0):
            yield from ((ast.unparse(item.context_expr), node.lineno) for item in node.items)
        elif isinstance(node, ast.Call) and node.lineno < frame.line and _method(node) in ("acquire", "release"):
            if _method(node) == "acquire":
                acquired[_owner(node)] = node.lineno
            else:
                acquired.pop(_owner(node), None)
    yield from acquired.items()


def _function(frame: Frame) -> list[ast.AST]:
    """The parts of the function that a frame is in, or of the whole file where it is in none."""
    tree = _tree(frame.file)
    if tree is None:
        return []
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    around = [node for node in ast.walk(tree) if isinstance(node, kinds) and _covers(node, frame.line)]
    return list(_own_parts(max(around, key=lambda node: node.lineno) if around else tree, kinds))


def _own_parts(node: ast.AST, kinds: tuple[type[ast.AST], ...]) -> Iterator[ast.AST]:
    """Everything below, without the functions that are defined there: these run at other times."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, kinds):
            yield from _own_parts(child, kinds)


@functools.lru_cache(maxsize=64)
def _tree(file: str) -> ast.Module | None:
    try:
        path = Path(file)
        return ast.parse(path.read_bytes()) if path.stat().st_size < _LARGEST else None
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _covers(node: ast.AST, line: int) -> bool:
    begin, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    return bool(begin <= line <= (end or begin))


def _method(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else ""


def _owner(node: ast.Call) -> str:
    return ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
