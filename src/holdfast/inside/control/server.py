"""The control server of a training: a thread that listens on a socket in the rank's folder, and answers requests.

Only the user who trains and root are answered, whatever the permissions of the socket file. Every change, and code that is run,
gets a number and a row in the journal.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from holdfast.inside.control.evaluate import NoTensorAccess, complete, evaluate, format_error, read_code
from holdfast.inside.control.names import Names, all_stacks, find_by_type
from holdfast.inside.control.settings import AppliedChange, Settings, read_setting, settings_of
from holdfast.inside.control.step_boundary import Request, Response, StepBoundary
from holdfast.signals.actions import Refused
from holdfast.signals.control_socket import REQUEST_BYTES, listen_in, next_number, peer_of, receive, remove, send
from holdfast.signals.own_thread import OwnThread

if TYPE_CHECKING:
    from holdfast.inside.process import Process
    from holdfast.inside.run_checkpoints import RunCheckpoints
    from holdfast.inside.scope import Scope
    from holdfast.inside.training import Training

_IO_TIMEOUT = 10.0  # seconds for a client to send its request, and to take the response
_FINISH_TIMEOUT = 2.0  # seconds that the end of a training waits for responses
_LOGGED_CODE = 500  # characters of code in a journal row
_LOGGED = ("path", "from", "to", "undoes")  # what the journal row of a change tells of its response
Work = Callable[[], Response]


class ControlServers:
    """The control servers of all trainings of this process.

    A step costs one attribute read, `process.on_step_boundary`, which is None while there is nothing to do.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._servers: dict[int, ControlServer] = {}

    def open(self, training: Training, scope: Scope) -> None:
        """Start the server of a training that runs in this thread. Raises OSError."""
        self._servers[id(training)] = ControlServer(training, Requests(training, scope, self._process, self._wake))

    def close(self, training: Training) -> None:
        """Stop the server of a training that has ended."""
        server = self._servers.pop(id(training), None)
        if server is not None:
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

    def _wake(self) -> None:
        self._process.on_step_boundary = self._at_step_boundary

    def _at_step_boundary(self, training: Training) -> None:
        server = self._servers.get(id(training))
        try:
            if server is not None:
                server.boundary.run()
        finally:
            self._process.on_step_boundary = None
            if not all(server.boundary.is_idle for server in tuple(self._servers.values())):
                self._wake()


class ControlServer:
    """Serves requests to one training."""

    def __init__(self, training: Training, requests: Requests) -> None:
        self._training, self._requests, self.boundary = training, requests, requests.boundary
        self._folder: Path = training.recorder.recording.path
        self._socket, self._path = listen_in(self._folder)
        self._closed = False
        self._active, self._responded = 0, threading.Condition()
        OwnThread(self._listen, name="holdfast-control").start()

    def close(self) -> None:
        """Remove the socket and wait for responses."""
        self._closed = True
        self.boundary.close()
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
                self._active += 1
            OwnThread(self._serve, connection, name="holdfast-control-request").start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                response = self._respond(connection)
                connection.settimeout(_IO_TIMEOUT)
                send(connection, response)
        except (OSError, EOFError):
            pass  # the client has hung up
        except Exception as error:  # noqa: BLE001 - a failed request must not end the training
            self._training.recorder.step_back("answering a request", error)
        finally:
            with self._responded:
                self._active -= 1
                self._responded.notify_all()

    def _respond(self, connection: socket.socket) -> dict[str, Any]:
        uid, pid = peer_of(connection)
        if uid not in (0, os.geteuid()):
            return _refused("the training belongs to another user.", "run the command as that user, or as root")
        try:
            request = receive(connection, at_most=REQUEST_BYTES, seconds=_IO_TIMEOUT)
        except ValueError as error:
            return _refused(f"the request is not a line of JSON: {error}", "send one object on one line")
        request.setdefault("who", f"uid {uid} pid {pid}")
        connection.settimeout(None)
        try:
            return self._requests.handle(request, connection)
        except Exception as error:  # noqa: BLE001 - goes back to the client
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}


def _refused(problem: str, fix: str) -> dict[str, Any]:
    return {"ok": False, "refused": True, "error": problem, "fix": fix}


class Requests:
    """Answers the requests to one training. Only the work of a change, and code without `now`, runs in the training thread."""

    def __init__(self, training: Training, scope: Scope, process: Process, wake: Callable[[], None]) -> None:
        self._training, self._scope, self._process = training, scope, process
        self.boundary = StepBoundary(training, wake)
        self._training_thread = threading.get_ident()
        self._names = Names(self._frame, partial(find_by_type, training))
        self._changes: dict[int, AppliedChange | str] = {}  # by number; a string is the name of a request without undo
        self._run_checkpoints: RunCheckpoints | None = None
        self._questions: dict[str, Callable[[Request], Response]] = {
            "where": self._where,
            "withdraw": self._withdraw,
            "eval": self._eval,
            "complete": self._complete,
            "stacks": lambda _request: all_stacks(),
        }
        self._work: dict[str, Callable[[dict[str, Any]], Work]] = {
            "set": self._set,
            "undo": self._undo,
            "save": lambda content: lambda: {"finish": self._checkpoints().save_on_request(self._training, content.get("path"))},
            "rollback": self._rollback,
            "pause": self._pause,
            "continue": lambda _content: self._continue,
        }

    def handle(self, content: dict[str, Any], connection: socket.socket) -> Response:
        """Carry out a request and return the response."""
        do, request = str(content.get("do")), Request(content, connection)
        try:
            if do in self._questions:
                response = self._questions[do](request)
            elif do in self._work:
                response = self._change(do, request)
            else:
                known = ", ".join((*self._questions, *self._work))
                response = {"ok": False, "error": f"there is no request {content.get('do')!r}; there are {known}"}
        except Refused as reason:
            response = {"ok": False, "ran": False, "error": str(reason)}
        return {"step": self._training.step, "value": None, "output": "", "error": None, **response}

    def close(self) -> None:
        """Finish saves that are still being written."""
        if self._run_checkpoints is not None:
            self._run_checkpoints.close()

    # Inspecting

    def _where(self, _request: Request) -> Response:
        boundary, seconds = self.boundary, self._training.budget.step_seconds
        waiting = [request.number for request in boundary.pending()]
        return {"ok": True, "paused": boundary.is_paused, "step_seconds": seconds, "waiting": waiting}

    def _withdraw(self, request: Request) -> Response:
        pending = [call for call in self.boundary.pending() if call.number == request.content.get("number")]
        return {"ok": sum(call.cancel() for call in pending) > 0}

    def _complete(self, request: Request) -> Response:
        with self._no_tensor_access(timeout=0.0):
            return {"ok": True, "names": complete(str(request.content.get("text", "")), self._names.copy())}

    def _eval(self, request: Request) -> Response:
        text, now = str(request.content.get("code", "")), bool(request.content.get("now"))
        try:
            code = read_code(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return {"ok": False, "error": format_error(error, text)}

        def beside() -> Response:
            names = self._names.copy()
            with self._no_tensor_access(request.timeout):
                response = evaluate(code, names, request.code, in_thread=False)
            self._names.update(names)
            return response

        def between_steps() -> Response:
            self._training_thread = threading.get_ident()
            return evaluate(code, self._names, request.code)

        if now:
            request.work = beside
            request.set_running_or_notify_cancel()
            OwnThread(request.run, name="holdfast-eval").start()
            response = {"ran": True, **request.answer()}
        else:
            response = {"ran": True, **self._at_boundary(between_steps, request)}
        if response["ran"]:
            response["number"] = number = next_number(self._scope.run.path)
            self._changes[number] = "eval"
            shown = text if len(text) <= _LOGGED_CODE else f"{text[:_LOGGED_CODE]}…"
            self._log("eval", request, response, number=number, code=shown, now=now, ok=response["ok"])
        return response

    def _frame(self) -> FrameType | None:
        """The innermost frame of the training thread."""
        return sys._current_frames().get(self._training_thread)

    def _no_tensor_access(self, timeout: float) -> NoTensorAccess:
        seconds = self._training.budget.step_seconds
        return NoTensorAccess(is_paused=lambda: self.boundary.is_waiting, step_seconds=seconds, timeout=timeout)

    # Changing

    def _change(self, do: str, request: Request) -> Response:
        """Make a change between two steps, number it and write its journal row."""
        content = request.content
        undone = self._changes.get(int(content.get("change") or content.get("number") or 0)) if do == "undo" else None
        number = content.get("as" if do == "undo" else "number")
        do = "continue" if undone == "pause" else do
        work = self._work[do](content)
        response = {"ok": True, **work()} if do == "continue" else self._at_boundary(work, request)
        if (finish := response.pop("finish", None)) is not None:
            response |= finish()
        change = response.pop("change", None)
        if not response["ok"]:
            return response
        if not isinstance(number, int):
            number = next_number(self._scope.run.path)
        self._changes[number] = change if change is not None else do
        row = {name: response[name] for name in _LOGGED if name in response}
        self._log("change", request, response, number=number, do=do, what=response.get("what", do), **row)
        return {**response, "number": number}

    def _at_boundary(self, work: Work, request: Request) -> Response:
        request.work = lambda: {"step": self._training.step, **work()}
        self.boundary.submit(request)
        return request.answer()

    def _set(self, content: dict[str, Any]) -> Work:
        setting = read_setting(str(content.get("text", "")))
        return partial(self._change_settings, lambda settings: settings.change(setting))

    def _undo(self, content: dict[str, Any]) -> Work:
        number = int(content.get("change") or content.get("number") or 0)
        change = self._changes.get(number)
        if change is None:
            raise Refused(f"there is no change {number} in this training; `holdfast journal --kind change` lists them")
        if isinstance(change, str):
            raise Refused(f"change {number} is `{change}`, which cannot be undone")
        what = f"undo {number} ({change.what})"
        return partial(self._change_settings, lambda settings: settings.undo(change), what=what, undoes=number)

    def _change_settings(self, make: Callable[[Settings], AppliedChange], **row: Any) -> Response:
        change = make(settings_of(self._training))
        value = f"{change.what.split(' ')[0]} {_format(change.before)} -> {_format(change.after)}"
        values = {"from": change.before, "to": change.after, "note": change.note, "value": value}
        return {"change": change, "what": change.what, **values, **row}

    def _checkpoints(self) -> RunCheckpoints:
        from holdfast.inside.run_checkpoints import RunCheckpoints

        self._run_checkpoints = self._run_checkpoints or RunCheckpoints(self._scope, self._process)
        return self._run_checkpoints

    def _rollback(self, content: dict[str, Any]) -> Work:
        to = content.get("to")

        def work() -> Response:
            restored = self._checkpoints().roll_back(self._training, str(to) if to else None)
            value = f"restored the state of step {restored.step} ({restored.path})"
            return {"path": str(restored.path), "to": restored.step, "skipped": restored.skipped, "value": value}

        return work

    def _pause(self, content: dict[str, Any]) -> Work:
        seconds = content.get("for")
        pause = partial(self.boundary.pause, None if seconds is None else float(seconds))
        return lambda: {"value": "paused" if pause() else "already paused"}

    def _continue(self) -> Response:
        return {"value": "resumed"} if self.boundary.resume() else {"ok": False, "error": "it was not paused"}

    # The journal

    def _log(self, kind: str, request: Request, response: Response, **row: Any) -> None:
        recorder = self._training.recorder
        step = response.get("step", self._training.step)
        with contextlib.suppress(OSError):
            recorder.run.journal.write(kind, who=request.content.get("who"), **row, step=step, rank=recorder.recording.rank)


def _format(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_format, value)) + "]"
    return "off" if value is None else f"{value:g}"
