"""The process that measures, seen from outside: it is asked, watched, and ended when it is silent or takes too much memory."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from holdfast.data.loading.blame import where

# Memory of a process and all that it started, with what they share counted once.
# On Linux that is the proportional share of each, and the shared memory through which workers hand over batches: between the
# worker that has let go of a batch and the process that has not taken it yet, it is in nobody's address space. Elsewhere it is
# what each has resident, in which shared pages count several times.


def tree_memory(pid: int) -> int:
    """Bytes now; 0 where the process is gone."""
    import psutil

    processes: list[Any] = []
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        processes = [process, *process.children(recursive=True)]
    private = shared = 0
    handed: dict[tuple[int, int], int] = {}
    for one in processes:
        with contextlib.suppress(psutil.Error, OSError):
            own, common = _parts(one)
            private, shared = private + own, shared + common
            handed |= _open_shared(one.pid)
    return private + max(shared, sum(handed.values()))


def _parts(process: Any) -> tuple[int, int]:
    """What is its own, and its share of shared memory."""
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return int(process.memory_info().rss), 0
    rows = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    size = {name: int(value.split()[0]) * 1024 for name, value in rows.items() if name.startswith("Pss")}
    common = size.get("Pss_Shmem", 0)
    return size.get("Pss", 0) - common, common


def _open_shared(pid: int) -> dict[tuple[int, int], int]:
    """The pieces of shared memory that a process holds open: device and number, with their bytes."""
    found = {}
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(link.readlink()).startswith(("/dev/shm/", "/memfd:")):
                    file = link.stat()
                    found[file.st_dev, file.st_ino] = file.st_blocks * 512
    return found


DONE, DIED, SILENT, OUTGREW = "done", "died", "silent", "outgrew"
_POLL, _SPARED = 0.05, 8  # a look at the memory may take an eighth of the time
_STACK_WAIT = 0.5
_FILLING = 0.2  # seconds in which the workers fill their queue
_KEPT = 20_000
_alive: set[int] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What it said, how that ended, and the bytes it had at its peak beyond those at the beginning."""

    how: str
    facts: dict[str, Any] = field(default_factory=dict)
    peak: int = 0
    words: str = ""
    sample: str = ""  # the one that was loaded by itself when it ended


class Measurer:
    """One process with one loader. After `how` was anything but "done" it is gone."""

    def __init__(self, target: str, options: dict[str, Any]) -> None:
        self._errors = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - closed with the process
        self._at = tempfile.NamedTemporaryFile(prefix="holdfast-sample-")  # noqa: SIM115 - as above
        asked = json.dumps({"target": target, "options": options, "at": self._at.name})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.data.loading.child", asked],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True,
        )  # fmt: skip
        if not _alive:
            atexit.register(_end_all)
        _alive.add(self._process.pid)
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._hear, args=(self._process.stdout,), daemon=True).start()

    def made(self, seconds: float, memory: int) -> Answer:
        """What it says of the loader, once that is made."""
        return self._heard(seconds, memory, "loader", 0)

    def ask(self, row: dict[str, Any], seconds: float, memory: int) -> Answer:
        """Let it measure; past `seconds` or `memory` it is ended, and what it has said by then counts."""
        base = tree_memory(self._process.pid)
        self._say(row)
        return self._heard(seconds, memory, "over", base)

    def _say(self, row: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(row).encode() + b"\n")
            self._process.stdin.flush()

    def end(self) -> None:
        """End it and all it started; once more does nothing."""
        if self._process.pid not in _alive:
            return
        _end(self._process.pid)
        self._process.wait()
        _alive.discard(self._process.pid)
        for file in (self._process.stdin, self._errors, self._at):
            with contextlib.suppress(OSError, ValueError):
                file.close()  # type: ignore[union-attr]

    def _heard(self, seconds: float, memory: int, last: str, base: int) -> Answer:
        facts: dict[str, Any] = {}
        until, peak, look_at = time.monotonic() + seconds, 0, 0.0
        while last not in facts and "problem" not in facts:
            if time.monotonic() > look_at:
                begun = time.monotonic()
                peak = max(peak, tree_memory(self._process.pid) - base)
                look_at = time.monotonic() + max(_POLL, _SPARED * (time.monotonic() - begun))
            if peak > memory:
                return self._ended(OUTGREW, facts, peak)
            with contextlib.suppress(queue.Empty):
                row = self._lines.get(timeout=_POLL)
                if row is None:
                    return self._ended(DIED, facts, peak)
                facts |= row
                if "full" in row:
                    time.sleep(_FILLING)
                    peak = max(peak, tree_memory(self._process.pid) - base)
                    self._say({})
                continue
            if time.monotonic() > until:
                return self._ended(SILENT, facts, peak)
        return Answer(how=DONE, facts=facts, peak=peak)

    def _ended(self, how: str, facts: dict[str, Any], peak: int) -> Answer:
        words = self._stands_at() if how == SILENT else ""
        if how == DIED:
            words = self._last_words()
        sample = self._sample()
        self.end()
        return Answer(how=how, facts=facts, peak=peak, words=words, sample=sample)

    def _stands_at(self) -> str:
        """The line of the user's code at which a worker, or the process itself, does not go on."""
        import psutil

        if not hasattr(signal, "SIGUSR1"):
            return ""
        with contextlib.suppress(psutil.Error):
            for one in reversed([psutil.Process(self._process.pid), *psutil.Process(self._process.pid).children(recursive=True)]):
                before = len(self._written())
                with contextlib.suppress(psutil.Error):
                    one.send_signal(signal.SIGUSR1)
                until = time.monotonic() + _STACK_WAIT
                while time.monotonic() < until:
                    time.sleep(_POLL)
                    if place := where(self._written()[before:]):
                        return place
        return ""

    def _sample(self) -> str:
        return Path(self._at.name).read_text(encoding="ascii", errors="replace").strip()

    def _last_words(self) -> str:
        code = self._process.wait()
        lines = [line.strip() for line in self._written().splitlines() if line.strip()]
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"ended by {signal.Signals(-code).name}"
        return lines[-1][:200] if lines else f"ended with exit code {code}"

    def _written(self) -> str:
        fd = self._errors.fileno()
        size = os.fstat(fd).st_size
        return os.pread(fd, _KEPT, max(0, size - _KEPT)).decode(errors="replace")

    def _hear(self, lines: IO[bytes]) -> None:
        for line in lines:
            if line.startswith(b"{"):
                with contextlib.suppress(ValueError):
                    self._lines.put(json.loads(line))
        self._lines.put(None)
        lines.close()


def _end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _end_all() -> None:
    for group in list(_alive):
        _end(group)
