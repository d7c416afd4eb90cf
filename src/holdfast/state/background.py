"""A thread for slow work beside the training: checking copies, writing checkpoints. It starts with its first job."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable

from holdfast.signals.own_thread import OwnThread

Job = Callable[[], None]


class BackgroundThread:
    """Runs jobs one after the other; a job that fails is reported, and the next one runs."""

    def __init__(self, name: str, *, on_error: Callable[[str, BaseException], None]) -> None:
        self._name, self._on_error = name, on_error
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: OwnThread | None = None
        self._process = 0

    def submit(self, job: Job) -> None:
        """Queue a job; it runs at once, in the caller, where no thread can be started."""
        if self._process != os.getpid():  # the first job, or a forked child, which has no threads
            jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
            thread = OwnThread(self._work, jobs, name=self._name)
            try:
                thread.start()
            except RuntimeError as error:  # no memory for a stack, or too many threads
                self._on_error("starting a thread", error)
                self._run(job)
                return
            self._process, self._jobs, self._thread = os.getpid(), jobs, thread
        self._jobs.put(job)

    def close(self, timeout: float = 5.0) -> None:
        """Finish the queued jobs and end the thread, waiting at most `timeout` seconds."""
        if self._thread is not None and self._process == os.getpid():
            self._jobs.put(None)
            self._thread.wait(timeout)
            self._process = 0

    def _work(self, jobs: queue.SimpleQueue[Job | None]) -> None:
        while (job := jobs.get()) is not None:
            self._run(job)
            del job  # it may hold a snapshot's memory

    def _run(self, job: Job) -> None:
        try:
            job()
        except Exception as error:  # noqa: BLE001 - a failing side job must not end the thread
            self._on_error("working in the background", error)
