"""The step boundary of one training: between two steps its thread runs pending requests, and waits while it is paused."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from holdfast.inside.control.evaluate import StoppableCode
from holdfast.inside.observers.heartbeat import HEARTBEAT
from holdfast.signals.actions import Refused
from holdfast.signals.pulse import PAUSED

if TYPE_CHECKING:
    from holdfast.inside.training import Training

Response = dict[str, Any]
_TIMEOUT = 30.0  # seconds to wait for a step, and to run, unless the request says otherwise
_POLL_EVERY = 0.2  # seconds between two looks at whether the client is still connected
_OWN_WORK_EXTRA = 600.0  # seconds more for Holdfast's own work, which is never stopped
_STOP_GRACE = 2.0  # seconds that code gets to stop
_LATE = "the training is already past that step"
_NO_STEP = "no step within {:g} s, so nothing ran; --now runs it at once; holdfast backtrace shows where the training is"
_DOES_NOT_STOP = "it took longer than {:g} s; it was asked to stop, but is still inside a call that cannot be interrupted"


class Request(Future[Response]):
    """A request of a client: what it asks for, what to run for it, and whether the client is still there.

    Its work runs before the update of step `at`, or at the next step boundary. Its result is the response.
    """

    def __init__(self, content: dict[str, Any], connection: socket.socket) -> None:
        super().__init__()
        self.content, self._connection = content, connection
        seconds, at = content.get("seconds"), content.get("at")
        self.timeout = min(max(float(seconds), 0.05), 86400.0) if isinstance(seconds, (int, float)) else _TIMEOUT
        self.at = int(at) if isinstance(at, int) else None
        self.number = content.get("as", content.get("number"))
        self.work: Callable[[], Response] = dict
        self.code = StoppableCode()

    def run(self) -> Response:
        """Do the work; what it raises becomes the response. Only Ctrl-C escapes."""
        response: Response = {"ok": False, "error": "interrupted by Ctrl-C in the terminal of the training"}
        try:
            response = {"ok": True, **self.work()}
        except Refused as reason:
            response = {"ok": False, "ran": False, "error": str(reason)}
        except Exception as error:  # noqa: BLE001 - goes back to the client
            response = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        finally:
            self.set_result(response)
        return response

    def answer(self) -> Response:
        """Wait for a step and for the work; withdraw it if no step comes, stop the user's code when its time is up.

        Both also happen when the client has hung up. Holdfast's own work (a large save) is not stopped: it finishes and is
        written to the journal.
        """
        submitted, started = time.monotonic(), 0.0
        while not wait([self], _POLL_EVERY if self.timeout > 1.0 else 0.02).done:
            now = time.monotonic()
            if not self.running():
                if (now - submitted >= self.timeout or self._hung_up()) and self.cancel():
                    return {"ok": False, "ran": False, "error": _NO_STEP.format(self.timeout)}
                continue
            started = started or now
            if self.code.is_running and (now - started >= self.timeout or self._hung_up()):
                if self.code.stop():
                    wait([self], _STOP_GRACE)
                break
            if now - started >= self.timeout + _OWN_WORK_EXTRA:
                break
        if self.cancelled():
            return {"ok": False, "ran": False, "withdrawn": True, "error": "the request was withdrawn"}
        return self.result() if self.done() else {"ok": False, "error": _DOES_NOT_STOP.format(self.timeout)}

    def _hung_up(self) -> bool:
        with contextlib.suppress(OSError, ValueError):
            if select.select([self._connection], [], [], 0)[0]:
                return self._connection.recv(1, socket.MSG_PEEK) == b""
        return False


class StepBoundary:
    """The pending requests and the pause of one training; `wake` has its thread call `run` at the next step boundary."""

    def __init__(self, training: Training, wake: Callable[[], None]) -> None:
        self._training, self._wake = training, wake
        self._changed = threading.Condition()
        self._pending: list[Request] = []
        self._paused_until = 0.0
        self._busy = False
        self.is_waiting = False  # whether the training thread is blocked in a pause right now

    # Called from other threads

    def submit(self, request: Request) -> None:
        """Queue a request for the next step boundary."""
        with self._changed:
            self._pending.append(request)
            self._changed.notify_all()
        self._wake()

    def pending(self) -> list[Request]:
        """The requests that wait for a step."""
        return [request for request in self._pending if not request.done()]

    def close(self) -> None:
        """Fail the pending requests at the end of the training, and end its pause."""
        self.resume()
        with self._changed:
            pending, self._pending = self.pending(), []
        for request in pending:
            if request.set_running_or_notify_cancel():
                request.set_result({"ok": False, "error": "the training has ended"})

    def pause(self, seconds: float | None) -> bool:
        """Pause the training at its step boundary; False if it is already paused."""
        was_paused = self.is_paused
        self._paused_until = time.monotonic() + (threading.TIMEOUT_MAX / 2 if seconds is None else seconds)
        self._wake()
        return not was_paused

    def resume(self) -> bool:
        """End the pause; False if there was none."""
        with self._changed:
            was_paused, self._paused_until = self.is_paused, 0.0
            self._changed.notify_all()
            return was_paused

    @property
    def is_paused(self) -> bool:
        """Whether the training is paused, or will be at its next step."""
        return self._paused_until > 0.0

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do at the next step boundary."""
        return not self._pending and not self.is_paused

    # Called in the training thread

    def run(self) -> None:
        """Run what is due, and wait out a pause. Only Ctrl-C escapes from here."""
        if self._busy:  # evaluated code called optimizer.step()
            return
        self._busy, start = True, time.perf_counter()
        try:
            with HEARTBEAT.during(PAUSED):  # evaluated code may be slow too
                self._run_due()
                while self._waits_on():
                    self._run_due()
        except Exception as error:  # noqa: BLE001 - shields the user's step
            self._training.recorder.step_back("running requests at a step boundary", error)
        finally:
            self._busy = False
            self._training.evaluated += time.perf_counter() - start

    def _run_due(self) -> None:
        while (request := self._next_due()) is not None:
            step = self._training.step
            if request.at is not None and step > request.at:
                request.set_result({"ok": False, "late": True, "error": _LATE})
                continue
            with self._isolated():
                request.run()

    def _is_due(self, request: Request) -> bool:
        return request.at is None or self._training.step >= request.at

    def _next_due(self) -> Request | None:
        with self._changed:
            self._pending = self.pending()
            due = next((request for request in self._pending if self._is_due(request)), None)
            if due is not None:
                self._pending.remove(due)
            return due if due is None or due.set_running_or_notify_cancel() else None

    def _waits_on(self) -> bool:
        """In a pause: block until a request is due or the pause is over; whether it continues."""
        with self._changed:
            seconds = self._paused_until - time.monotonic()
            if seconds <= 0:
                self._paused_until = 0.0
            elif not any(map(self._is_due, self._pending)):
                self.is_waiting = True
                try:
                    self._changed.wait(min(seconds, 3600.0))
                finally:
                    self.is_waiting = False
            return self.is_paused

    @contextlib.contextmanager
    def _isolated(self) -> Any:
        """Keep evaluated code out of the next step's record, and show it the settings in force."""
        training = self._training
        if training.settings is not None:
            for optimizer in training.optimizers():
                training.settings.apply(optimizer, keep=True)
        try:
            yield
        finally:
            if training.settings is not None:
                training.settings.revert()
            training.forget_clipping()
