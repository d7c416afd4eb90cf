"""A process writes its own stacks into a file when it gets a signal: what is left where no other process may read it.

The handler is faulthandler's. It is in C: it also answers while the interpreter lock is held, and runs none of the user's
code. A real-time signal is taken that nobody handles; one that has a handler is left alone. Children that are forked answer
into the same file; a program that is started anew does not handle the signal, and would die of it, so it is never sent one.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast.signals.run_folder import RunFolder

_FILE = re.compile(r"own-stacks-(\d+)-(\d+)\.txt$")
_LONGEST = 4 << 20
_open: dict[int, Path] = {}  # by process: a forked child inherits the handler, and the file


def answer_signal(folder: Path) -> Path | None:
    """Inside: have this process write its stacks into a file of `folder` when asked. None if no signal is free for that.

    Once for a process: it is asked for as early as its run is known, so that the workers that it forks later answer too.
    """
    if (open_file := _open.get(os.getpid())) is not None:
        return open_file
    number = _free_signal()
    if number is None:
        return None
    path = folder / f"own-stacks-{os.getpid()}-{number}.txt"
    try:
        folder.mkdir(exist_ok=True)
        faulthandler.register(number, file=path.open("ab"), all_threads=True, chain=False)  # it keeps the file open
    except (OSError, RuntimeError, ValueError):
        return None
    _open[os.getpid()] = path
    atexit.register(remove_if_empty, path, os.getpid())
    return path


def withdraw_if_taken() -> None:
    """Inside, now and then: a handler that the user has put in place of ours since is theirs, and nobody sends it anything."""
    path = _open.get(os.getpid())
    if path is not None and signal.getsignal(int(path.stem.rpartition("-")[2])) is not signal.SIG_DFL:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def remove_if_empty(path: Path, pid: int) -> None:
    """Inside, at exit: remove a file into which this process has written nothing, and its folder."""
    with contextlib.suppress(OSError):
        if pid == os.getpid() and path.stat().st_size == 0:
            path.unlink()
            path.parent.rmdir()  # if nothing else is there


def _free_signal() -> int | None:
    """The highest real-time signal but a few that is at its default; systems without those go without."""
    if not hasattr(signal, "SIGRTMAX") or not hasattr(faulthandler, "register"):
        return None
    candidates = range(signal.SIGRTMAX - 4, signal.SIGRTMIN + 8, -1)
    caught = _mask("self", "SigCgt") | _mask("self", "SigIgn")
    return next((n for n in candidates if signal.getsignal(n) is signal.SIG_DFL and not caught >> (n - 1) & 1), None)


def own_stacks(run: RunFolder, pid: int, parents: tuple[int, ...] = (), *, seconds: float = 1.0) -> str | None:
    """Outside: ask a process for its stacks. None if it does not listen, or does not answer in time."""
    for whose, number, path in _files(run):
        if (whose == pid or whose in parents) and _listens(pid, number):
            return _ask(pid, number, path, seconds)
    return None


def _files(run: RunFolder) -> Iterator[tuple[int, int, Path]]:
    for path in sorted(run.path.glob("*/own-stacks-*-*.txt")):
        if (match := _FILE.search(path.name)) is not None:
            yield int(match[1]), int(match[2]), path


def _ask(pid: int, number: int, path: Path, seconds: float) -> str | None:
    """Send the signal and read what comes. One at a time for a file: a process and its forked children write into the same."""
    import fcntl

    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            before = os.fstat(file.fileno()).st_size
            os.kill(pid, number)
            if _grown(file.fileno(), before, seconds):
                file.seek(before)
                return file.read(_LONGEST).decode(errors="replace")
    except OSError:
        pass
    return None


def _grown(descriptor: int, before: int, seconds: float) -> bool:
    """Wait until a file has grown, and grows no more."""
    deadline, size = time.monotonic() + seconds, before
    while time.monotonic() < deadline:
        time.sleep(0.02)
        now = os.fstat(descriptor).st_size
        if now > before and now == size:
            return True
        size = now
    return False


def _listens(pid: int, number: int) -> bool:
    """Whether the process handles the signal and does not block it; without a handler it would die of it."""
    here = 1 << (number - 1)
    return bool(_mask(str(pid), "SigCgt") & here) and not _mask(str(pid), "SigBlk") & here and not _stands_still(pid)


def _mask(pid: str, name: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        match = re.search(rf"^{name}:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return int(match[1], 16) if match else 0
    return 0


def _stands_still(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return bool(re.search(r"^State:\s*[TtZXD]", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE))
    return True
