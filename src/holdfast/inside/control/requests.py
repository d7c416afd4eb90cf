"""The requests that a training answers through its control server, and the journal row of each."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from holdfast.inside.control.evaluate import Code, Evaluator, read_code, syntax_error
from holdfast.inside.control.frames import all_stacks
from holdfast.inside.control.names import ByType
from holdfast.inside.control.settings import AppliedChange, Settings, read_setting, settings_of
from holdfast.inside.control.step_boundary import (
    PendingRequest,
    Request,
    Response,
    StepBoundary,
    run_at_boundary,
    timeout_of,
    wait_for,
)
from holdfast.inside.control.tensor_access import NoTensorAccess, StoppableCode
from holdfast.inside.observers.memory import resident_of
from holdfast.signals.actions import Refused
from holdfast.signals.control_socket import next_number

if TYPE_CHECKING:
    from holdfast.inside.control.save_now import SaveNow
    from holdfast.inside.process import Process
    from holdfast.inside.scope import Scope
    from holdfast.inside.training import Training

_MAX_COUNTED = 1000  # code texts whose runs are counted
_LOGGED_CODE = 500  # characters of code in a journal row


class Requests:
    """Answers the requests to one training. Only the work itself runs in the training thread."""

    def __init__(self, training: Training, scope: Scope, process: Process, boundary: StepBoundary, evaluator: Evaluator) -> None:
        self._training, self._scope, self._process = training, scope, process
        self._boundary, self._evaluator, self._find = boundary, evaluator, ByType(training)
        self._training_thread = threading.get_ident()
        self._changes: dict[int, AppliedChange | str] = {}  # by number; a string is the name of a request without undo
        self._eval_counts: dict[tuple[str, str], int] = {}
        self._save_now: SaveNow | None = None
        self._handlers: dict[str, Callable[[Request, socket.socket], Response]] = {
            "where": self._where,
            "withdraw": self._withdraw,
            "eval": self._eval,
            "complete": self._complete,
            "set": self._set,
            "undo": self._undo,
            "save": self._save,
            "rollback": self._rollback,
            "cleanup": self._cleanup,
            "pause": self._pause,
            "continue": self._continue,
            "stacks": lambda _request, _connection: all_stacks(),
        }

    def handle(self, request: Request, connection: socket.socket) -> Response:
        """Carry out a request and return the response."""
        handler = self._handlers.get(str(request.get("do")))
        if handler is None:
            return {"ok": False, "error": f"there is no request {request.get('do')!r}; there are {', '.join(self._handlers)}"}
        try:
            response = handler(request, connection)
        except Refused as reason:
            response = {"ok": False, "ran": False, "error": str(reason)}
        return {"step": self._training.step, "value": None, "output": "", "error": None, **response}

    def close(self) -> None:
        """Finish saves that are still being written."""
        if self._save_now is not None:
            self._save_now.close()

    # Inspecting

    def _where(self, _request: Request, _connection: socket.socket) -> Response:
        training = self._training
        waiting = [request.number for request in self._boundary.pending(training)]
        paused = self._boundary.is_paused(training)
        return {"ok": True, "paused": paused, "step_seconds": training.budget.step_seconds, "waiting": waiting}

    def _withdraw(self, request: Request, _connection: socket.socket) -> Response:
        pending = [call for call in self._boundary.pending(self._training) if call.number == request.get("number")]
        return {"ok": sum(call.cancel() for call in pending) > 0}

    def _complete(self, request: Request, _connection: socket.socket) -> Response:
        with self._no_tensor_access(timeout=0.0):
            names = self._evaluator.complete(str(request.get("text", "")), self._frame(), self._find)
        return {"ok": True, "names": names}

    def _eval(self, request: Request, connection: socket.socket) -> Response:
        text = str(request.get("code", ""))
        try:
            code = read_code(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return syntax_error(error, text)
        run = self._eval_now if request.get("now") else self._eval_at_boundary
        response = {"ran": True, **run(code, request, connection)}
        if response["ran"]:
            self._log_eval(request, text, response)
        return response

    def _eval_at_boundary(self, code: Code, request: Request, connection: socket.socket) -> Response:
        stoppable = StoppableCode()

        def work() -> Response:
            self._training_thread = threading.get_ident()
            return self._evaluator.run(code, self._frame, self._find, stoppable)

        return self._at_boundary(work, request, connection, stoppable)

    def _eval_now(self, code: Code, request: Request, connection: socket.socket) -> Response:
        stoppable, timeout = StoppableCode(), timeout_of(request)

        def work() -> Response:
            with self._no_tensor_access(timeout):
                return self._evaluator.run(code, self._frame, self._find, stoppable, in_thread=False)

        pending = PendingRequest(self._training, work, stoppable)
        pending.set_running_or_notify_cancel()
        threading.Thread(target=lambda: pending.set_result(work()), name="holdfast-eval", daemon=True).start()
        return wait_for(pending, timeout, connection)

    def _frame(self) -> FrameType | None:
        """The innermost frame of the training thread."""
        return sys._current_frames().get(self._training_thread)

    def _no_tensor_access(self, timeout: float) -> NoTensorAccess:
        is_paused = partial(self._boundary.is_waiting, self._training)
        return NoTensorAccess(is_paused=is_paused, step_seconds=self._training.budget.step_seconds, timeout=timeout)

    # Changing

    def _set(self, request: Request, connection: socket.socket) -> Response:
        setting = read_setting(str(request.get("text", "")))
        return self._change_settings("set", lambda settings: settings.change(setting), request, connection)

    def _undo(self, request: Request, connection: socket.socket) -> Response:
        number = int(request.get("change") or request.get("number") or 0)
        change, request = self._changes.get(number), {**request, "number": request.get("as")}
        if change == "pause":
            return self._continue(request, connection)
        if change is None:
            raise Refused(f"there is no change {number} in this training; `holdfast journal --kind change` lists them")
        if isinstance(change, str):
            raise Refused(f"change {number} is `{change}`, which cannot be undone")
        what = f"undo {number} ({change.what})"
        return self._change_settings(
            "undo", lambda settings: settings.undo(change), request, connection, what=what, undoes=number
        )

    def _change_settings(
        self, do: str, make: Callable[[Settings], AppliedChange], request: Request, connection: socket.socket, **row: Any
    ) -> Response:
        training = self._training

        def work() -> Response:
            change = make(settings_of(training))
            return {"ok": True, "change": change, "what": row.get("what", change.what), "note": change.note}

        response = self._at_boundary(work, request, connection)
        change: AppliedChange | None = response.pop("change", None)
        if change is None:
            return response
        row = {"what": response["what"], "from": change.before, "to": change.after, **row}
        text = f"{change.what.split(' ')[0]} {_format(change.before)} -> {_format(change.after)}"
        response |= {"value": text, "from": change.before, "to": change.after}
        return self._log_change(do, request, response, change=change, **row)

    def _checkpoints(self) -> SaveNow:
        from holdfast.inside.control.save_now import SaveNow

        self._save_now = self._save_now or SaveNow(self._training, self._scope, self._process)
        return self._save_now

    def _save(self, request: Request, connection: socket.socket) -> Response:
        path = request.get("path")

        def work() -> Response:
            return {"ok": True, "finish": self._checkpoints().save(str(path) if path else None)}

        response = self._at_boundary(work, request, connection)
        if (finish := response.pop("finish", None)) is not None:
            response |= finish()
            response["value"] = response.get("path")
        return self._log_change("save", request, response, what="save", path=response.get("path"))

    def _rollback(self, request: Request, connection: socket.socket) -> Response:
        to = request.get("to")

        def work() -> Response:
            restored = self._checkpoints().roll_back(str(to) if to else None)
            return {"ok": True, "path": str(restored.path), "to": restored.step, "skipped": restored.skipped}

        response = self._at_boundary(work, request, connection)
        if response.get("ok"):
            response["value"] = f"restored the state of step {response['to']} ({response['path']})"
        return self._log_change("rollback", request, response, what="rollback", path=response.get("path"), to=response.get("to"))

    def _cleanup(self, request: Request, connection: socket.socket) -> Response:
        response = self._at_boundary(self._free_memory, request, connection)
        return self._log_change("cleanup", request, response, what="cleanup", freed=response.get("freed"))

    def _free_memory(self) -> Response:
        before = _memory()
        if (optimizer := self._training.main_optimizer()) is not None:
            optimizer.zero_grad(set_to_none=True)
        collected = gc.collect()
        if _uses_gpu():
            torch.cuda.empty_cache()
        freed = {name: max(0, before[name] - now) for name, now in _memory().items()}
        return {"ok": True, "freed": freed, "objects": collected}

    def _pause(self, request: Request, connection: socket.socket) -> Response:
        seconds = request.get("for")

        def work() -> Response:
            paused = self._boundary.pause(self._training, None if seconds is None else float(seconds))
            return {"ok": True, "value": "paused" if paused else "already paused"}

        return self._log_change("pause", request, self._at_boundary(work, request, connection), what="pause")

    def _continue(self, request: Request, _connection: socket.socket) -> Response:
        resumed = self._boundary.resume(self._training)
        response = {"ok": True, "value": "resumed"} if resumed else {"ok": False, "error": "it was not paused"}
        return self._log_change("continue", request, response, what="continue")

    def _at_boundary(
        self, work: Callable[[], Response], request: Request, connection: socket.socket, code: StoppableCode | None = None
    ) -> Response:
        return run_at_boundary(self._boundary, self._training, work, request, connection, code or StoppableCode())

    # The journal

    def _log_change(
        self, do: str, request: Request, response: Response, *, change: AppliedChange | None = None, **row: Any
    ) -> Response:
        """Number a change and write its journal row, if it was made."""
        if not response.get("ok"):
            return response
        number = request.get("number")
        if not isinstance(number, int):
            number = next_number(self._scope.run.path)
        self._changes[number] = change if change is not None else do
        self._log("change", request, response, number=number, do=do, **row)
        return {**response, "number": number}

    def _log_eval(self, request: Request, text: str, response: Response) -> None:
        """Write that code was run; the same code by the same user is logged on runs 1, 2, 4, 8, …"""
        key = str(request.get("who", "")).partition(" ")[0], text
        if len(self._eval_counts) >= _MAX_COUNTED:
            self._eval_counts.clear()
        count = self._eval_counts[key] = self._eval_counts.get(key, 0) + 1
        if count & (count - 1) == 0:
            code = text if len(text) <= _LOGGED_CODE else f"{text[:_LOGGED_CODE]}…"
            response["number"] = number = next_number(self._scope.run.path)
            self._changes[number] = "eval"
            row = {"number": number, "code": code, "now": bool(request.get("now")), "ok": response["ok"]}
            self._log("eval", request, response, **row, **({"times": count} if count > 1 else {}))

    def _log(self, kind: str, request: Request, response: Response, **row: Any) -> None:
        recorder = self._training.recorder
        step = response.get("step", self._training.step)
        with contextlib.suppress(OSError):
            recorder.run.journal.write(kind, who=request.get("who"), **row, step=step, rank=recorder.recording.rank)


def _format(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_format, value)) + "]"
    return "off" if value is None else f"{value:g}"


def _uses_gpu() -> bool:
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _memory() -> dict[str, int]:
    """Bytes in use, on the host and on the GPU."""
    memory = {"host": resident_of(os.getpid()) or 0}
    if _uses_gpu():
        memory |= {"gpu_allocated": torch.cuda.memory_allocated(), "gpu_reserved": torch.cuda.memory_reserved()}
    return memory
