"""`train.log`: a copy of what the command printed, written by a thread of its own.

A slow or stuck disk must not hold up the training's `print`, so the copy waits in memory, up to a limit. What does
not fit is dropped from the log (never from what the user sees), and `holdfast-degraded` says so.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
import time
from pathlib import Path

from holdfast.signals.trouble import Trouble

_AT_MOST_WAITING = 16 << 20
_ROOT_CAUSE = re.compile(r"Root Cause[^$]*?\n\s+rank\s+: (\d+) \(local_rank: \d+\)\s+exitcode\s+: (-?\d+)")
_LOG_BYTES = 1 << 20  # of the end of a log that are looked at
_LINES = 20  # the last ones
_ERROR_WORDS = ("error", "exception", "no space left", "out of memory")
_PART = "copying the output into train.log"


class TrainLog:
    """Append to the log; never blocks and never raises."""

    def __init__(self, path: Path, trouble: Trouble) -> None:
        self.path, self._trouble = path, trouble
        self._waiting = 0
        self._lock = threading.Lock()
        self._parts: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="holdfast-log", daemon=True)

    def start(self) -> None:
        """Start writing."""
        self._thread.start()

    def put(self, part: bytes) -> None:
        """Hand over what was printed."""
        with self._lock:
            fits = self._waiting + len(part) <= _AT_MOST_WAITING
            self._waiting += len(part) if fits else 0
        if fits:
            self._parts.put(part)
        else:
            self._trouble.step_back(_PART, OSError("the disk is too slow for this output"))

    def flush(self, seconds: float) -> None:
        """Wait until what was handed over is written, for so long at most."""
        deadline = time.monotonic() + seconds
        while self._waiting and time.monotonic() < deadline:
            time.sleep(0.01)

    @property
    def size(self) -> int:
        """Bytes in the file."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def close(self, seconds: float) -> None:
        """Write what waits, for so long at most."""
        self._parts.put(None)
        self._thread.join(seconds)

    def _work(self) -> None:
        while (part := self._parts.get()) is not None:
            try:
                append_to(self.path, part)
            except OSError as error:
                self._trouble.step_back(_PART, error)
            with self._lock:
                self._waiting -= len(part)


def append_to(path: Path, part: bytes) -> None:
    """Append all of it. The file is opened each time: a folder that was moved away must not be written to any more."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while part:
            part = part[os.write(descriptor, part) :]
    finally:
        os.close(descriptor)


def end_of_log(path: Path, since: int) -> str:
    """The end of a log, from byte `since` on."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(since, size - _LOG_BYTES))
        return file.read().decode(errors="replace")
    return ""


def last_lines(text: str) -> list[str]:
    """The last few lines."""
    return text.splitlines()[-_LINES:]


def speaks_of_errors(path: Path, since: int) -> bool:
    """Whether the last lines of a log may tell of an error, from byte `since` on; a quick look."""
    return any(word in line.lower() for line in last_lines(end_of_log(path, since)) for word in _ERROR_WORDS)


def root_cause(log: str) -> tuple[int, int] | None:
    """The rank that failed first and its exit code, as torchrun says at its end; a signal is negative."""
    match = _ROOT_CAUSE.search(log, max(0, log.rfind("Root Cause")))
    return (int(match[1]), int(match[2])) if match is not None else None
