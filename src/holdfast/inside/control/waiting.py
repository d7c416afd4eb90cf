"""Wait in the thread of a connection until the training has done what was asked, within the time that the request gives."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.inside.control.step_boundary import WITHDRAWN, Answer, Asked, Boundary
from holdfast.inside.control.time_limit import Gate

if TYPE_CHECKING:
    from holdfast.inside.training import Training

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
