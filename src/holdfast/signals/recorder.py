"""The tables of one training of one rank, and the one helper thread that keeps files away from the training thread."""

from __future__ import annotations

import json
import os
import queue
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.signals.many_ranks import table_for, thinning_for
from holdfast.signals.own_thread import OwnThread
from holdfast.signals.run_folder import Recording, RunFolder, replace_text
from holdfast.signals.schema import TABLES
from holdfast.signals.start_ticks import start_ticks
from holdfast.signals.strings import StringWriter
from holdfast.signals.table import TableWriter
from holdfast.signals.trouble import Trouble

_ENVIRONMENTS = ("gymnasium", "gym", "dm_env", "pettingzoo")  # packages with worlds to act in


class Recorder:
    """Tables by name, made when their first row comes."""

    def __init__(self, run: RunFolder, recording: Recording, world: int = 1) -> None:
        self.run, self.recording, self._world = run, recording, world
        self.checkpoints = run.path / "checkpoints"  # those of this training: see inside/control/which_training.py
        self.thinning = thinning_for(recording.rank, world)
        self._trouble = Trouble(run.journal, rank=recording.rank)
        self.strings = StringWriter(recording.path, on_trouble=self.step_back)
        self._tables: dict[str, TableWriter] = {}
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._periodic: list[Callable[[], None]] = []
        self._closed = False
        self._thread = OwnThread(self._work, name="holdfast")
        self._thread.start()
        _let_go_after_fork(self)

    @classmethod
    def start(cls, run: RunFolder, rank: int, world: int = 1, also: Mapping[str, Any] | None = None) -> Recorder:
        """Claim the rank's next folder in the run, say who writes there, and open it. Raises OSError if it cannot."""
        recording = run.claim(rank)
        who = {
            "pid": os.getpid(),
            "parent": os.getppid(),
            "host": socket.gethostname(),
            "world_size": world,
            "attempt": int(os.environ.get("HOLDFAST_ATTEMPT") or 1),
            "argv": sys.orig_argv,
            "started": time.time(),
            "start_ticks": start_ticks(os.getpid()),
            "environment": next((name for name in _ENVIRONMENTS if name in sys.modules), None),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            **(also or {}),
        }
        replace_text(recording.path / "process.json", json.dumps(who) + "\n")
        return cls(run, recording, world)

    def table(self, name: str) -> TableWriter:
        """The table of that name."""
        writer = self._tables.get(name)
        if writer is None:
            table = table_for(TABLES[name], self.recording.rank, self._world)
            run_later = self._jobs.put if table is not None else _never
            writer = self._tables[name] = TableWriter(
                self.recording.path, table or TABLES[name], run_later=run_later, on_trouble=self.step_back
            )
            if self._closed or table is None:
                writer.let_go()
        return writer

    def run_later(self, job: Callable[[], None]) -> None:
        """Call `job` once in the helper thread."""
        self._jobs.put(job)

    def every_second(self, job: Callable[[], None]) -> None:
        """Call `job` about once a second in the helper thread."""
        self._periodic.append(job)

    def step_back(self, part: str, error: BaseException) -> None:
        """Record that Holdfast could not do a thing."""
        self._trouble.step_back(part, error)

    @property
    def degraded(self) -> str | None:
        """The first thing that Holdfast could not do."""
        return self._trouble.first

    def close(self) -> None:
        """Seal all tables and end the helper thread."""
        if self._closed:
            return
        self._closed = True
        self._jobs.put(None)
        self._thread.wait(2.0)
        for writer in self._tables.values():
            writer.close()
        self._trouble.write_pending()

    def let_go(self) -> None:
        """In a forked child: the tables are the parent's, so leave them alone and drop what the child appends."""
        self._closed = True
        self._trouble.lock = threading.Lock()  # the parent may have held it at the fork
        for writer in self._tables.values():
            writer.let_go()

    @property
    def dropped(self) -> int:
        """Rows that could not be kept, over all tables."""
        return sum(writer.dropped for writer in self._tables.values())

    def _work(self) -> None:
        wake_at = time.monotonic() + 1.0
        while True:
            try:
                job = self._jobs.get(timeout=max(0.0, wake_at - time.monotonic()))
            except queue.Empty:
                wake_at = time.monotonic() + 1.0
                self._run_periodic()
                continue
            if job is None:
                return
            self._run("making a file", job)

    def _run_periodic(self) -> None:
        self._trouble.write_pending()
        for job in self._periodic:
            self._run("sampling in the background", job)

    def _run(self, part: str, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:  # noqa: BLE001 - a failing side job must not end the helper thread
            self.step_back(part, error)


def _never(_job: Callable[[], None]) -> None:
    """Make no file."""


def _let_go_after_fork(recorder: Recorder) -> None:
    """Have a forked child leave the parent's tables alone; the hook does not keep the recorder alive."""
    reference = weakref.ref(recorder)

    def in_child() -> None:
        if (alive := reference()) is not None:
            alive.let_go()

    os.register_at_fork(after_in_child=in_child)
