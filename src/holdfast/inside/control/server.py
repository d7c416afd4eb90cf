"""The door of a training: a thread that listens at a socket in the rank's folder, and answers whoever may ask.

That is the user who trains, and root. Everyone else is refused, also where the file's rights were changed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.inside.control import captured_output as printed
from holdfast.inside.control.evaluate import Evaluator
from holdfast.inside.control.requests import Requests
from holdfast.inside.control.step_boundary import Boundary, Request
from holdfast.signals.door import REQUEST_BYTES, listen_in, peer_of, receive, remove, send

if TYPE_CHECKING:
    from holdfast.inside.process import Process
    from holdfast.inside.scope import Scope
    from holdfast.inside.training import Training

_AT_ONCE = 32  # requests under way
_TO_SAY_IT = 10.0  # seconds that who connects has for the request
_LAST_ANSWERS = 2.0  # seconds that the end of a training waits for answers that are under way


class ControlServers:
    """The doors of all trainings of this process, and what they share."""

    def __init__(self, process: Process) -> None:
        self._boundary, self._evaluator = Boundary(process), Evaluator()
        self._process = process
        self._open: dict[int, ControlServer] = {}

    def open(self, training: Training, scope: Scope) -> None:
        """Open the door of a training that has begun in this thread. Raises OSError."""
        requests = Requests(training, scope, self._process, self._boundary, self._evaluator)
        self._open[id(training)] = ControlServer(training, requests)

    def close(self, training: Training) -> None:
        """The training is over."""
        door = self._open.pop(id(training), None)
        if door is not None:
            self._boundary.end(training)
            door.close()

    def finish_answers(self) -> None:
        """The process is about to end: let those who asked have their answers first."""
        for door in self._open.values():
            door.finish_answers()

    def after_fork(self) -> None:
        """In a forked child: the doors are the parent's."""
        printed.after_fork()
        for door in self._open.values():
            door.let_go()
        self._open.clear()


class ControlServer:
    """Listens for one training."""

    def __init__(self, training: Training, requests: Requests) -> None:
        self._training, self._requests = training, requests
        self._folder: Path = training.recorder.recording.path
        self._listening, self._path = listen_in(self._folder)
        self._room = threading.BoundedSemaphore(_AT_ONCE)
        self._closed = False
        self._answering, self._answered = 0, threading.Condition()
        threading.Thread(target=self._listen, name="holdfast-door", daemon=True).start()

    def close(self) -> None:
        """Take the socket away."""
        self._closed = True
        remove(self._folder, self._path)
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._listening.close()
        self._requests.close()
        self.finish_answers()

    def finish_answers(self) -> None:
        """Wait a little for the answers that are under way: what was asked for may be what ends the training."""
        with self._answered:
            self._answered.wait_for(lambda: not self._answering, _LAST_ANSWERS)

    def let_go(self) -> None:
        """In a forked child: close what was inherited, and leave the socket alone."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listening.close()

    def _listen(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listening.accept()
            except OSError as error:
                if not self._closed:
                    self._training.recorder.step_back("listening at the door", error)
                return
            if self._room.acquire(blocking=False):
                threading.Thread(target=self._serve, args=(connection,), name="holdfast-door-answer", daemon=True).start()
            else:
                _refuse(connection, f"{_AT_ONCE} requests are under way already", "ask again in a while")
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                self._converse(connection)
        except (OSError, EOFError):
            pass  # who asked has gone
        except Exception as error:  # noqa: BLE001 - a request that fails must not take the training with it
            self._training.recorder.step_back("answering at the door", error)
        finally:
            self._room.release()

    def _converse(self, connection: socket.socket) -> None:
        uid, pid = peer_of(connection)
        if uid not in (0, os.geteuid()):
            _refuse(connection, "the training belongs to another user.", "ask as the user who trains, or as root")
            return
        try:
            request = receive(connection, at_most=REQUEST_BYTES, seconds=_TO_SAY_IT)
        except ValueError as error:
            _refuse(connection, f"the request is no line of JSON: {error}", "send one object on one line")
            return
        request.setdefault("who", f"uid {uid} pid {pid}")
        connection.settimeout(None)
        with self._answered:
            self._answering += 1
        try:
            self._answer(request, connection)
        finally:
            with self._answered:
                self._answering -= 1
                self._answered.notify_all()

    def _answer(self, request: Request, connection: socket.socket) -> None:
        try:
            answer = self._requests.answer(request, connection)
        except Exception as error:  # noqa: BLE001 - goes back to who asked
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        connection.settimeout(_TO_SAY_IT)
        send(connection, answer)


def _refuse(connection: socket.socket, problem: str, fix: str) -> None:
    with contextlib.suppress(OSError):
        connection.settimeout(_TO_SAY_IT)
        send(connection, {"ok": False, "refused": True, "error": problem, "fix": fix})
