"""The control server of a training: a thread that listens on a socket in the rank's folder.

Only the user who trains and root are answered, whatever the permissions of the socket file.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.inside.control.evaluate import Evaluator
from holdfast.inside.control.requests import Requests
from holdfast.inside.control.step_boundary import StepBoundary
from holdfast.signals.control_socket import REQUEST_BYTES, listen_in, peer_of, receive, remove, send

if TYPE_CHECKING:
    from holdfast.inside.process import Process
    from holdfast.inside.scope import Scope
    from holdfast.inside.training import Training

_MAX_REQUESTS = 32  # at the same time
_IO_TIMEOUT = 10.0  # seconds for a client to send its request, and to take the response
_FINISH_TIMEOUT = 2.0  # seconds that the end of a training waits for responses


class ControlServers:
    """The control servers of all trainings of this process, and what they share."""

    def __init__(self, process: Process) -> None:
        self._boundary, self._evaluator = StepBoundary(process), Evaluator()
        self._process = process
        self._servers: dict[int, ControlServer] = {}

    def open(self, training: Training, scope: Scope) -> None:
        """Start the server of a training that runs in this thread. Raises OSError."""
        requests = Requests(training, scope, self._process, self._boundary, self._evaluator)
        self._servers[id(training)] = ControlServer(training, requests)

    def close(self, training: Training) -> None:
        """Stop the server of a training that has ended."""
        server = self._servers.pop(id(training), None)
        if server is not None:
            self._boundary.close(training)
            server.close()

    def finish_responses(self) -> None:
        """Wait for responses before the process ends."""
        for server in self._servers.values():
            server.finish_responses()

    def after_fork(self) -> None:
        """In a forked child: the servers belong to the parent."""
        for server in self._servers.values():
            server.release()
        self._servers.clear()


class ControlServer:
    """Serves requests to one training."""

    def __init__(self, training: Training, requests: Requests) -> None:
        self._training, self._requests = training, requests
        self._folder: Path = training.recorder.recording.path
        self._socket, self._path = listen_in(self._folder)
        self._closed = False
        self._active, self._responded = 0, threading.Condition()
        threading.Thread(target=self._listen, name="holdfast-control", daemon=True).start()

    def close(self) -> None:
        """Remove the socket and wait for responses."""
        self._closed = True
        remove(self._folder, self._path)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()
        self._requests.close()
        self.finish_responses()

    def finish_responses(self) -> None:
        """Wait briefly for responses: the request may be what ends the training."""
        with self._responded:
            self._responded.wait_for(lambda: not self._active, _FINISH_TIMEOUT)

    def release(self) -> None:
        """In a forked child: close the inherited descriptor, and leave the socket file alone."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.close()

    def _listen(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if not self._closed:
                    self._training.recorder.step_back("listening on the control socket", error)
                return
            with self._responded:
                is_taken = self._active < _MAX_REQUESTS
                self._active += is_taken
            if is_taken:
                threading.Thread(target=self._serve, args=(connection,), name="holdfast-control-request", daemon=True).start()
            else:
                _refuse(connection, f"{_MAX_REQUESTS} requests are already running", "try again in a while")
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                self._handle(connection)
        except (OSError, EOFError):
            pass  # the client has hung up
        except Exception as error:  # noqa: BLE001 - a failed request must not end the training
            self._training.recorder.step_back("answering a request", error)
        finally:
            with self._responded:
                self._active -= 1
                self._responded.notify_all()

    def _handle(self, connection: socket.socket) -> None:
        uid, pid = peer_of(connection)
        if uid not in (0, os.geteuid()):
            _refuse(connection, "the training belongs to another user.", "run the command as that user, or as root")
            return
        try:
            request = receive(connection, at_most=REQUEST_BYTES, seconds=_IO_TIMEOUT)
        except ValueError as error:
            _refuse(connection, f"the request is not a line of JSON: {error}", "send one object on one line")
            return
        request.setdefault("who", f"uid {uid} pid {pid}")
        connection.settimeout(None)
        try:
            response = self._requests.handle(request, connection)
        except Exception as error:  # noqa: BLE001 - goes back to the client
            response = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        connection.settimeout(_IO_TIMEOUT)
        send(connection, response)


def _refuse(connection: socket.socket, problem: str, fix: str) -> None:
    with contextlib.suppress(OSError):
        connection.settimeout(_IO_TIMEOUT)
        send(connection, {"ok": False, "refused": True, "error": problem, "fix": fix})
