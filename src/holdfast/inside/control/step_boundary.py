"""The place between two steps: where the training thread answers what was asked, and where it waits when it was told to pause.

The training looks at one attribute of its process per step, `process.asked`, which is None while nobody asks.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.inside.control.tensor_access import Gate
from holdfast.inside.observers.heartbeat import HEARTBEAT
from holdfast.signals.actions import Refused
from holdfast.signals.pulse import PAUSED

if TYPE_CHECKING:
    from holdfast.inside.process import Process
    from holdfast.inside.training import Training

Answer = dict[str, Any]
_WAITING, _RUNNING, _OVER, WITHDRAWN = range(4)
LATE = "the training is past that step already"
ENDED = "the training has ended"


class Asked:
    """Something to do between two steps: before the update of step `at`, exactly, or as soon as can be."""

    def __init__(
        self, training: Training, do: Callable[[], Answer], gate: Gate, *, at: int | None = None, number: int | None = None
    ) -> None:
        self.training, self.do, self.gate, self.at, self.number = training, do, gate, at, number
        self.answer: Answer | None = None
        self.done = threading.Event()
        self.begun = threading.Event()
        self.state = _WAITING

    def end(self, answer: Answer) -> None:
        """It is answered."""
        self.state, self.answer = _OVER, answer
        self.done.set()


class Boundary:
    """What waits for the next step of each training of this process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._changed = threading.Condition()
        self._waiting: list[Asked] = []
        self._paused: dict[int, float] = {}  # trainings that wait, by identity, and until when
        self._standing: set[int] = set()  # trainings whose thread waits now
        self._here = threading.local()

    # From other threads

    def put(self, asked: Asked) -> None:
        """Have it done between two steps."""
        with self._changed:
            self._waiting.append(asked)
            self._process.asked = self.between_steps
            self._changed.notify_all()

    def withdraw(self, asked: Asked) -> bool:
        """Have it not done; False if that is too late."""
        with self._changed:
            if asked.state != _WAITING:
                return False
            asked.state = WITHDRAWN
            self._waiting = [one for one in self._waiting if one is not asked]
            return True

    def waiting(self, training: Training) -> list[Asked]:
        """What waits for a step of a training."""
        with self._changed:
            return [one for one in self._waiting if one.training is training]

    def end(self, training: Training) -> None:
        """A training is over: nothing is done there any more, and nothing waits."""
        with self._changed:
            mine = [one for one in self._waiting if one.training is training]
            self._waiting = [one for one in self._waiting if one.training is not training]
            self._paused.pop(id(training), None)
            self._changed.notify_all()
        for asked in mine:
            asked.end({"ok": False, "error": ENDED})

    def pause(self, training: Training, seconds: float | None) -> bool:
        """Have a training wait where it is between two steps; False if it does already."""
        with self._changed:
            before = self.is_paused(training)
            self._paused[id(training)] = time.monotonic() + (threading.TIMEOUT_MAX / 2 if seconds is None else seconds)
            self._process.asked = self.between_steps
            return not before

    def go_on(self, training: Training) -> bool:
        """End the pause; False if there was none."""
        with self._changed:
            before = self._paused.pop(id(training), None)
            self._changed.notify_all()
            return before is not None

    def is_paused(self, training: Training) -> bool:
        """Whether it waits, or will at the next step."""
        return id(training) in self._paused

    def stands_still(self, training: Training) -> bool:
        """Whether its thread waits now, and does nothing else."""
        return id(training) in self._standing

    # In the training thread

    def between_steps(self, training: Training) -> None:
        """A step is over and the next one has not begun. Nothing but Ctrl-C gets out of here."""
        if getattr(self._here, "inside", False):  # evaluated code makes a step
            return
        self._here.inside, begun = True, time.perf_counter()
        try:
            with HEARTBEAT.during(PAUSED):  # evaluated code may take its time too
                self._serve(training)
                if self.is_paused(training):
                    self._wait(training)
        except Exception as error:  # noqa: BLE001 - shields the user's step
            training.recorder.step_back("answering between two steps", error)
        finally:
            self._here.inside = False
            training.evaluated += time.perf_counter() - begun
            with self._changed:
                if not self._waiting and not self._paused:
                    self._process.asked = None

    def _serve(self, training: Training) -> None:
        while (asked := self._next(training)) is not None:
            self._do(asked, training)

    def _next(self, training: Training) -> Asked | None:
        """The next one that is due."""
        with self._changed:
            for asked in self._waiting:
                if asked.training is training and (asked.at is None or training.step >= asked.at):
                    self._waiting = [one for one in self._waiting if one is not asked]
                    asked.state = _RUNNING
                    return asked
        return None

    def _do(self, asked: Asked, training: Training) -> None:
        if asked.at is not None and training.step > asked.at:
            asked.end({"ok": False, "late": True, "error": LATE, "step": training.step})
            return
        asked.begun.set()
        answer: Answer = {"ok": False, "error": "interrupted by Ctrl-C in the terminal of the training"}
        try:
            with _undisturbed(training):
                answer = asked.do()
        except Refused as why:
            answer = {"ok": False, "ran": False, "error": str(why)}
        except Exception as error:  # noqa: BLE001 - goes back to who asked
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        finally:
            asked.end({"step": training.step, **answer})

    def _wait(self, training: Training) -> None:
        """Wait until someone says go on, and answer meanwhile. Waiting lets other threads run."""
        while True:
            self._serve(training)
            with self._changed:
                left = self._paused.get(id(training), 0.0) - time.monotonic()
                if left <= 0:
                    self._paused.pop(id(training), None)
                    return
                if not any(one.training is training and (one.at or 0) <= training.step for one in self._waiting):
                    self._standing.add(id(training))
                    try:
                        self._changed.wait(min(left, 3600.0))
                    finally:
                        self._standing.discard(id(training))


@contextlib.contextmanager
def _undisturbed(training: Training) -> Any:
    """What was noted for the next step is not mixed with what evaluated code does; it sees the settings that are in force."""
    noted = training.noted()
    if training.changes is not None:
        for member in training.members.values():
            if (optimizer := member.optimizer()) is not None:
                training.changes.put_on(optimizer, keep=True)
    try:
        yield
    finally:
        if training.changes is not None:
            training.changes.take_off()
        training.put_back(noted)


Request = dict[str, Any]
_SECONDS = 30.0  # to wait for a step, and to run, unless the request says otherwise
_LOOK_EVERY = 0.2  # seconds, at whether who asked is still there
_OUR_OWN = 600.0  # seconds more that what we do ourselves may take
_STOPS_IN = 2.0  # seconds that code gets to stop when it was told to


def do_between_steps(
    boundary: Boundary, training: Training, work: Callable[[], Answer], request: Request, connection: socket.socket, gate: Gate
) -> Answer:
    """Have the training thread do it between two steps, within the time that the request gives."""
    seconds, at = seconds_of(request), request.get("at")
    number = request.get("as", request.get("number"))
    asked = Asked(training, work, gate, at=int(at) if isinstance(at, int) else None, number=number)
    boundary.put(asked)
    until = time.monotonic() + seconds
    while not asked.done.wait(min(_LOOK_EVERY, max(0.001, until - time.monotonic()))) and asked.state != WITHDRAWN:
        if asked.begun.is_set():
            return until_done(asked, seconds, connection)
        gone = _has_gone(connection)
        if (gone or time.monotonic() >= until) and boundary.withdraw(asked):
            return {"ok": False, "ran": False, "error": _no_step(seconds)}
    return asked.answer or {"ok": False, "ran": False, "withdrawn": True, "error": "it was withdrawn"}


def until_done(asked: Asked, seconds: float, connection: socket.socket) -> Answer:
    """Wait for what runs; when its time is over, or nobody waits for it any more, tell it to stop.

    What is not someone's code but our own (a save of something large) comes to its end and is told in the journal.
    """
    begun = time.monotonic()
    while not asked.done.wait(_LOOK_EVERY if seconds > 1.0 else 0.02):
        passed = time.monotonic() - begun
        if asked.gate.is_open and (passed >= seconds or _has_gone(connection)):
            if asked.gate.stop():
                asked.done.wait(_STOPS_IN)
            break
        if passed >= seconds + _OUR_OWN:
            break
    return asked.answer or _goes_on(seconds)


def seconds_of(request: Request) -> float:
    """How long to wait for a step, and how long it may take."""
    given = request.get("seconds")
    return min(max(float(given), 0.05), 86400.0) if isinstance(given, (int, float)) else _SECONDS


def _no_step(seconds: float) -> str:
    return (
        f"no step within {seconds:g} s, so it was not run; --now runs it at once; holdfast backtrace shows where the training is"
    )


def _goes_on(seconds: float) -> Answer:
    words = f"it took longer than {seconds:g} s; it was told to stop and is still inside a call that does not listen"
    return {"ok": False, "error": words}


def _has_gone(connection: socket.socket) -> bool:
    """Whether who asked has hung up."""
    with contextlib.suppress(OSError, ValueError):
        if select.select([connection], [], [], 0)[0]:
            return connection.recv(1, socket.MSG_PEEK) == b""
    return False
