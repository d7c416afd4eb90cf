"""The process that measures, seen from outside: it is asked, watched, and ended when it is silent or takes too much memory."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.loading.error_origin import where

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
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            own, common = _parts(process)
            private, shared = private + own, shared + common
            handed |= _open_shared(process.pid)
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
    pieces = {}
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(link.readlink()).startswith(("/dev/shm/", "/memfd:")):
                    file = link.stat()
                    pieces[file.st_dev, file.st_ino] = file.st_blocks * 512
    return pieces


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
    text: str = ""
    sample: str = ""  # the one that was loaded by itself when it ended


class Measurer:
    """One process with one loader. After `how` was anything but "done" it is gone."""

    def __init__(self, target: str, batch: int | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._errors = tempfile.NamedTemporaryFile(prefix="holdfast-errors-")  # noqa: SIM115 - closed with the process
        self._at = tempfile.NamedTemporaryFile(prefix="holdfast-sample-")  # noqa: SIM115 - as above
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_begin, args=(theirs, target, batch, self._errors.name, self._at.name))
        self._process.start()
        theirs.close()
        self._pid = self._process.pid or 0
        if not _alive:
            atexit.register(_end_all)
        _alive.add(self._pid)

    def made(self, seconds: float, memory: int) -> Answer:
        """What it says of the loader, once that is made."""
        return self._heard(seconds, memory, "loader", 0)

    def ask(self, row: dict[str, Any], seconds: float, memory: int) -> Answer:
        """Let it measure; past `seconds` or `memory` it is ended, and what it has said by then counts."""
        base = tree_memory(self._pid)
        with contextlib.suppress(OSError):
            self._pipe.send(row)
        return self._heard(seconds, memory, "over", base)

    def end(self) -> None:
        """End it and all it started; once more does nothing."""
        if self._pid not in _alive:
            return
        _end(self._pid)
        self._process.join()
        _alive.discard(self._pid)
        for file in (self._pipe, self._errors, self._at):
            file.close()

    def _heard(self, seconds: float, memory: int, last: str, base: int) -> Answer:
        facts: dict[str, Any] = {}
        until, peak, look_at = time.monotonic() + seconds, 0, 0.0
        while last not in facts and "problem" not in facts:
            if time.monotonic() > look_at:
                begun = time.monotonic()
                peak = max(peak, tree_memory(self._pid) - base)
                look_at = time.monotonic() + max(_POLL, _SPARED * (time.monotonic() - begun))
            if peak > memory:
                return self._ended(OUTGREW, facts, peak)
            try:
                row = self._pipe.recv() if self._pipe.poll(_POLL) else {}
            except (EOFError, OSError):
                return self._ended(DIED, facts, peak)
            facts |= row
            if "full" in row:
                time.sleep(_FILLING)
                peak = max(peak, tree_memory(self._pid) - base)
                self._pipe.send({})
            elif not row and time.monotonic() > until:
                return self._ended(SILENT, facts, peak)
            elif not row and not self._process.is_alive():
                return self._ended(DIED, facts, peak)
        return Answer(how=DONE, facts=facts, peak=peak)

    def _ended(self, how: str, facts: dict[str, Any], peak: int) -> Answer:
        text = self._stands_at() if how == SILENT else self._last_output() if how == DIED else ""
        sample = Path(self._at.name).read_text(encoding="ascii", errors="replace").strip()
        self.end()
        return Answer(how=how, facts=facts, peak=peak, text=text, sample=sample)

    def _stands_at(self) -> str:
        """The line of the user's code at which a worker, or the process itself, does not go on."""
        import psutil

        if not hasattr(signal, "SIGUSR1"):
            return ""
        with contextlib.suppress(psutil.Error):
            for process in reversed([psutil.Process(self._pid), *psutil.Process(self._pid).children(recursive=True)]):
                before = len(self._written())
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGUSR1)
                until = time.monotonic() + _STACK_WAIT
                while time.monotonic() < until:
                    time.sleep(_POLL)
                    if place := where(self._written()[before:]):
                        return place
        return ""

    def _last_output(self) -> str:
        self._process.join(_STACK_WAIT)
        code = self._process.exitcode or 0
        lines = [line.strip() for line in self._written().splitlines() if line.strip()]
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"ended by {signal.Signals(-code).name}"
        return lines[-1][:200] if lines else f"ended with exit code {code}"

    def _written(self) -> str:
        return Path(self._errors.name).read_bytes()[-_KEPT:].decode(errors="replace")


def _begin(*all_of_it: Any) -> None:
    """In the process: torch is imported there and not here."""
    from holdfast.loading.child import main

    main(*all_of_it)


def _end(group: int) -> None:
    for kill in (os.killpg, os.kill):  # it is a group only once it has begun
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(group, signal.SIGKILL)


def _end_all() -> None:
    for group in list(_alive):
        _end(group)
