"""One thread for slow work beside the training: checking copies, writing checkpoints. It starts with its first job."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable

Job = Callable[[], None]


class Helper:
    """Does jobs one after the other; a job that fails is reported, and the next one is done."""

    def __init__(self, name: str, *, on_trouble: Callable[[str, BaseException], None]) -> None:
        self._name, self._on_trouble = name, on_trouble
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._process = 0

    def later(self, job: Job) -> None:
        """Have a job done soon; at once, by the caller, where the system gives no thread."""
        if self._process != os.getpid():  # the first job, or a forked child, to which threads do not come along
            jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
            thread = threading.Thread(target=self._work, args=(jobs,), name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no memory for a stack, or too many threads
                self._on_trouble("starting a thread", error)
                self._do(job)
                return
            self._process, self._jobs, self._thread = os.getpid(), jobs, thread
        self._jobs.put(job)

    def close(self, timeout: float = 5.0) -> None:
        """Do what was given so far and end, or leave it undone after `timeout` seconds."""
        if self._thread is not None and self._process == os.getpid():
            self._jobs.put(None)
            self._thread.join(timeout)
            self._process = 0

    def _work(self, jobs: queue.SimpleQueue[Job | None]) -> None:
        while (job := jobs.get()) is not None:
            self._do(job)
            del job  # it may hold on to a snapshot's memory

    def _do(self, job: Job) -> None:
        try:
            job()
        except Exception as error:  # noqa: BLE001 - a failing side job must not end the thread
            self._on_trouble("working in the background", error)
