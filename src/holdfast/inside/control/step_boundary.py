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
_PENDING, _RUNNING, _DONE, CANCELLED = range(4)
LATE = "the training is already past that step"
ENDED = "the training has ended"


class PendingRequest:
    """Work for the training thread: before the update of step `at`, or at the next step boundary."""

    def __init__(
        self, training: Training, work: Callable[[], Response], code: StoppableCode, *, at: int | None = None, number: Any = None
    ) -> None:
        self.training, self.work, self.code, self.at, self.number = training, work, code, at, number
        self.response: Response | None = None
        self.done = threading.Event()
        self.started = threading.Event()
        self.state = _PENDING

    def finish(self, response: Response) -> None:
        """Set the response and wake the waiting thread."""
        self.state, self.response = _DONE, response
        self.done.set()


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

    def cancel(self, request: PendingRequest) -> bool:
        """Cancel a request; False if it has already started."""
        with self._changed:
            if request.state != _PENDING:
                return False
            request.state = CANCELLED
            self._pending.remove(request)
            return True

    def pending(self, training: Training) -> list[PendingRequest]:
        """The requests that wait for a step of this training."""
        with self._changed:
            return [request for request in self._pending if request.training is training]

    def close(self, training: Training) -> None:
        """Fail the pending requests of a training that has ended, and drop its pause."""
        with self._changed:
            failed = [request for request in self._pending if request.training is training]
            self._pending = [request for request in self._pending if request.training is not training]
            self._paused_until.pop(id(training), None)
            self._changed.notify_all()
        for request in failed:
            request.finish({"ok": False, "error": ENDED})

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
            request = next((request for request in self._pending if _is_due(request, training)), None)
            if request is not None:
                self._pending.remove(request)
                request.state = _RUNNING
            return request

    def _run(self, request: PendingRequest, training: Training) -> None:
        if request.at is not None and training.step > request.at:
            request.finish({"ok": False, "late": True, "error": LATE, "step": training.step})
            return
        request.started.set()
        response: Response = {"ok": False, "error": "interrupted by Ctrl-C in the terminal of the training"}
        try:
            with _isolated(training):
                response = request.work()
        except Refused as reason:
            response = {"ok": False, "ran": False, "error": str(reason)}
        except Exception as error:  # noqa: BLE001 - goes back to the client
            response = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        finally:
            request.finish({"step": training.step, **response})

    def _wait(self, training: Training) -> None:
        """Block until the pause ends, and run requests meanwhile."""
        while True:
            self._run_due(training)
            with self._changed:
                seconds = self._paused_until.get(id(training), 0.0) - time.monotonic()
                if seconds <= 0:
                    self._paused_until.pop(id(training), None)
                    return
                if not any(_is_due(request, training) for request in self._pending):
                    self._waiting.add(id(training))
                    try:
                        self._changed.wait(min(seconds, 3600.0))
                    finally:
                        self._waiting.discard(id(training))


def _is_due(request: PendingRequest, training: Training) -> bool:
    return request.training is training and (request.at is None or training.step >= request.at)


@contextlib.contextmanager
def _isolated(training: Training) -> Any:
    """Keep evaluated code out of the next step's record, and show it the settings in force."""
    noted = training.noted()
    if training.settings is not None:
        for member in training.members.values():
            if (optimizer := member.optimizer()) is not None:
                training.settings.apply(optimizer, keep=True)
    try:
        yield
    finally:
        if training.settings is not None:
            training.settings.revert()
        training.put_back(noted)


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
    while not pending.done.wait(min(_POLL_EVERY, max(0.001, deadline - time.monotonic()))) and pending.state != CANCELLED:
        if pending.started.is_set():
            return wait_for(pending, timeout, connection)
        if (_hung_up(connection) or time.monotonic() >= deadline) and boundary.cancel(pending):
            return {"ok": False, "ran": False, "error": _no_step(timeout)}
    return pending.response or {"ok": False, "ran": False, "withdrawn": True, "error": "the request was withdrawn"}


def wait_for(pending: PendingRequest, timeout: float, connection: socket.socket) -> Response:
    """Wait for running work; stop the user's code when its time is up or the client has hung up.

    Holdfast's own work (a large save) is not stopped: it finishes and is written to the journal.
    """
    start = time.monotonic()
    while not pending.done.wait(_POLL_EVERY if timeout > 1.0 else 0.02):
        elapsed = time.monotonic() - start
        if pending.code.is_running and (elapsed >= timeout or _hung_up(connection)):
            if pending.code.stop():
                pending.done.wait(_STOP_GRACE)
            break
        if elapsed >= timeout + _OWN_WORK_EXTRA:
            break
    return pending.response or {"ok": False, "error": _does_not_stop(timeout)}


def timeout_of(request: Request) -> float:
    """Seconds to wait for a step, and seconds that the work may take."""
    seconds = request.get("seconds")
    return min(max(float(seconds), 0.05), 86400.0) if isinstance(seconds, (int, float)) else _TIMEOUT


def _no_step(seconds: float) -> str:
    return f"no step within {seconds:g} s, so nothing ran; --now runs it at once; holdfast backtrace shows where the training is"


def _does_not_stop(seconds: float) -> str:
    return f"it took longer than {seconds:g} s; it was asked to stop, but is still inside a call that cannot be interrupted"


def _hung_up(connection: socket.socket) -> bool:
    with contextlib.suppress(OSError, ValueError):
        if select.select([connection], [], [], 0)[0]:
            return connection.recv(1, socket.MSG_PEEK) == b""
    return False
