"""The step boundary: between two steps the training thread runs pending requests, and waits while the training is paused.

A step costs one attribute read, `process.on_step_boundary`, which is None while there is nothing to do.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from holdfast.inside.control.tensor_access import StoppableCode
from holdfast.inside.observers.heartbeat import HEARTBEAT
from holdfast.signals.actions import Refused
from holdfast.signals.pulse import PAUSED

if TYPE_CHECKING:
    from holdfast.inside.process import Process
    from holdfast.inside.training import Training

Request = dict[str, Any]
Response = dict[str, Any]
LATE = "the training is already past that step"
ENDED = "the training has ended"
_NO_STEP = "no step within {:g} s, so nothing ran; --now runs it at once; holdfast backtrace shows where the training is"
_DOES_NOT_STOP = "it took longer than {:g} s; it was asked to stop, but is still inside a call that cannot be interrupted"


class PendingRequest(Future[Response]):
    """Work for the training thread: before the update of step `at`, or at the next step boundary. Its result is the response."""

    def __init__(
        self, training: Training, work: Callable[[], Response], code: StoppableCode, *, at: int | None = None, number: Any = None
    ) -> None:
        super().__init__()
        self.training, self.work, self.code, self.at, self.number = training, work, code, at, number

    def is_due(self, training: Training) -> bool:
        """Whether it is to run now, between two steps of this training."""
        return self.training is training and (self.at is None or training.step >= self.at)


class StepBoundary:
    """The pending requests and pauses of this process's trainings."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._changed = threading.Condition()
        self._pending: list[PendingRequest] = []
        self._paused_until: dict[int, float] = {}  # by id of the training
        self._waiting: set[int] = set()  # ids of trainings whose thread is waiting right now
        self._thread = threading.local()

    # Called from other threads

    def submit(self, request: PendingRequest) -> None:
        """Queue a request for the next step boundary."""
        with self._changed:
            self._pending.append(request)
            self._process.on_step_boundary = self.run_pending
            self._changed.notify_all()

    def pending(self, training: Training) -> list[PendingRequest]:
        """The requests that wait for a step of this training."""
        with self._changed:
            return [request for request in self._pending if request.training is training and not request.done()]

    def close(self, training: Training) -> None:
        """Fail the pending requests of a training that has ended, and drop its pause."""
        with self._changed:
            failed = [request for request in self._pending if request.training is training]
            self._pending = [request for request in self._pending if request.training is not training]
            self._paused_until.pop(id(training), None)
            self._changed.notify_all()
        for request in failed:
            if request.set_running_or_notify_cancel():
                request.set_result({"ok": False, "error": ENDED})

    def pause(self, training: Training, seconds: float | None) -> bool:
        """Pause a training at its step boundary; False if it is already paused."""
        with self._changed:
            was_paused = self.is_paused(training)
            self._paused_until[id(training)] = time.monotonic() + (threading.TIMEOUT_MAX / 2 if seconds is None else seconds)
            self._process.on_step_boundary = self.run_pending
            return not was_paused

    def resume(self, training: Training) -> bool:
        """End the pause; False if there was none."""
        with self._changed:
            was_paused = self._paused_until.pop(id(training), None) is not None
            self._changed.notify_all()
            return was_paused

    def is_paused(self, training: Training) -> bool:
        """Whether the training is paused, or will be at its next step."""
        return id(training) in self._paused_until

    def is_waiting(self, training: Training) -> bool:
        """Whether the training thread is blocked in a pause right now."""
        return id(training) in self._waiting

    # Called in the training thread

    def run_pending(self, training: Training) -> None:
        """Run what is due, then wait out a pause. Only Ctrl-C escapes from here."""
        if getattr(self._thread, "busy", False):  # evaluated code called optimizer.step()
            return
        self._thread.busy, start = True, time.perf_counter()
        try:
            with HEARTBEAT.during(PAUSED):  # evaluated code may be slow too
                self._run_due(training)
                if self.is_paused(training):
                    self._wait(training)
        except Exception as error:  # noqa: BLE001 - shields the user's step
            training.recorder.step_back("running requests at a step boundary", error)
        finally:
            self._thread.busy = False
            training.evaluated += time.perf_counter() - start
            with self._changed:
                if not self._pending and not self._paused_until:
                    self._process.on_step_boundary = None

    def _run_due(self, training: Training) -> None:
        while (request := self._next_due(training)) is not None:
            self._run(request, training)

    def _next_due(self, training: Training) -> PendingRequest | None:
        with self._changed:
            self._pending = [request for request in self._pending if not request.cancelled()]
            request = next((request for request in self._pending if request.is_due(training)), None)
            if request is not None:
                self._pending.remove(request)
            return request if request is None or request.set_running_or_notify_cancel() else None

    def _run(self, request: PendingRequest, training: Training) -> None:
        if request.at is not None and training.step > request.at:
            request.set_result({"ok": False, "late": True, "error": LATE, "step": training.step})
            return
        response: Response = {"ok": False, "error": "interrupted by Ctrl-C in the terminal of the training"}
        try:
            with _isolated(training):
                response = request.work()
        except Refused as reason:
            response = {"ok": False, "ran": False, "error": str(reason)}
        except Exception as error:  # noqa: BLE001 - goes back to the client
            response = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        finally:
            request.set_result({"step": training.step, **response})

    def _wait(self, training: Training) -> None:
        """Block until the pause ends, and run requests meanwhile."""
        while True:
            self._run_due(training)
            with self._changed:
                seconds = self._paused_until.get(id(training), 0.0) - time.monotonic()
                if seconds <= 0:
                    self._paused_until.pop(id(training), None)
                    return
                if not any(request.is_due(training) for request in self._pending):
                    self._waiting.add(id(training))
                    try:
                        self._changed.wait(min(seconds, 3600.0))
                    finally:
                        self._waiting.discard(id(training))


@contextlib.contextmanager
def _isolated(training: Training) -> Any:
    """Keep evaluated code out of the next step's record, and show it the settings in force."""
    if training.settings is not None:
        for optimizer in training.optimizers():
            training.settings.apply(optimizer, keep=True)
    try:
        yield
    finally:
        if training.settings is not None:
            training.settings.revert()
        training.forget_clipping()


_TIMEOUT = 30.0  # seconds to wait for a step, and to run, unless the request says otherwise
_POLL_EVERY = 0.2  # seconds between two looks at whether the client is still connected
_OWN_WORK_EXTRA = 600.0  # seconds more for Holdfast's own work, which is never stopped
_STOP_GRACE = 2.0  # seconds that code gets to stop


def run_at_boundary(
    boundary: StepBoundary,
    training: Training,
    work: Callable[[], Response],
    request: Request,
    connection: socket.socket,
    code: StoppableCode,
) -> Response:
    """Have the training thread run `work` at a step boundary, within the request's timeout."""
    timeout, at = timeout_of(request), request.get("at")
    number = request.get("as", request.get("number"))
    pending = PendingRequest(training, work, code, at=int(at) if isinstance(at, int) else None, number=number)
    boundary.submit(pending)
    deadline = time.monotonic() + timeout
    while not wait([pending], min(_POLL_EVERY, max(0.001, deadline - time.monotonic()))).done:
        if pending.running():
            return wait_for(pending, timeout, connection)
        if (_hung_up(connection) or time.monotonic() >= deadline) and pending.cancel():
            return {"ok": False, "ran": False, "error": _NO_STEP.format(timeout)}
    withdrawn = {"ok": False, "ran": False, "withdrawn": True, "error": "the request was withdrawn"}
    return withdrawn if pending.cancelled() else pending.result()


def wait_for(pending: PendingRequest, timeout: float, connection: socket.socket) -> Response:
    """Wait for running work; stop the user's code when its time is up or the client has hung up.

    Holdfast's own work (a large save) is not stopped: it finishes and is written to the journal.
    """
    start = time.monotonic()
    while not wait([pending], _POLL_EVERY if timeout > 1.0 else 0.02).done:
        elapsed = time.monotonic() - start
        if pending.code.is_running and (elapsed >= timeout or _hung_up(connection)):
            if pending.code.stop():
                wait([pending], _STOP_GRACE)
            break
        if elapsed >= timeout + _OWN_WORK_EXTRA:
            break
    return pending.result() if pending.done() else {"ok": False, "error": _DOES_NOT_STOP.format(timeout)}


def timeout_of(request: Request) -> float:
    """Seconds to wait for a step, and seconds that the work may take."""
    seconds = request.get("seconds")
    return min(max(float(seconds), 0.05), 86400.0) if isinstance(seconds, (int, float)) else _TIMEOUT


def _hung_up(connection: socket.socket) -> bool:
    with contextlib.suppress(OSError, ValueError):
        if select.select([connection], [], [], 0)[0]:
            return connection.recv(1, socket.MSG_PEEK) == b""
    return False
