"""What can be asked of a training through its door, and the row that the journal gets of it."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from holdfast.inside.control.evaluate import Code, Evaluator, frame_of, read_code, told_syntax
from holdfast.inside.control.frames import all_stacks
from holdfast.inside.control.names import ByType
from holdfast.inside.control.settings import AppliedChange, Settings, read_setting
from holdfast.inside.control.step_boundary import Answer, Asked, Boundary, Request, do_between_steps, seconds_of, until_done
from holdfast.inside.control.tensor_access import Gate, NoTensorAccess
from holdfast.inside.observers.heartbeat import HEARTBEAT
from holdfast.inside.observers.memory import resident_of
from holdfast.signals.actions import Refused
from holdfast.signals.door import next_number

if TYPE_CHECKING:
    from holdfast.inside.control.save_now import SaveNow
    from holdfast.inside.process import Process
    from holdfast.inside.scope import Scope
    from holdfast.inside.training import Training

_REMEMBERED = 1000  # texts of code, of which is known how often they were run


class Requests:
    """Answers the requests to one training. Everything but the work itself happens in the thread of the connection."""

    def __init__(self, training: Training, scope: Scope, process: Process, boundary: Boundary, evaluator: Evaluator) -> None:
        self._training, self._scope, self._process = training, scope, process
        self._boundary, self._evaluator, self._find = boundary, evaluator, ByType(training)
        self._thread = threading.get_ident()  # the one that trains
        self._made: dict[int, AppliedChange | str] = {}
        self._heard: dict[tuple[str, str], int] = {}
        self._emergency: SaveNow | None = None
        self._ways: dict[str, Callable[[Request, socket.socket], Answer]] = {
            "where": self._where,
            "withdraw": self._withdraw,
            "eval": self._eval,
            "complete": self._complete,
            "set": self._set,
            "undo": self._undo,
            "save": self._save,
            "cleanup": self._cleanup,
            "pause": self._pause,
            "continue": self._continue,
            "stacks": lambda _request, _connection: all_stacks(),
        }

    def answer(self, request: Request, connection: socket.socket) -> Answer:
        """Do what is asked, and say what came of it."""
        way = self._ways.get(str(request.get("do")))
        if way is None:
            return {"ok": False, "error": f"there is no request {request.get('do')!r}; there are {', '.join(self._ways)}"}
        try:
            answer = way(request, connection)
        except Refused as why:
            answer = {"ok": False, "ran": False, "error": str(why)}
        return {"step": self._training.step, "value": None, "output": "", "error": None, **answer}

    def here(self) -> None:
        """This is the thread that trains."""
        self._thread = threading.get_ident()

    def close(self) -> None:
        """The training is over."""
        if self._emergency is not None:
            self._emergency.close()

    # Looking

    def _where(self, _request: Request, _connection: socket.socket) -> Answer:
        training = self._training
        waiting = [one.number for one in self._boundary.waiting(training)]
        paused = self._boundary.is_paused(training)
        return {"ok": True, "paused": paused, "step_seconds": training.budget.step_seconds, "waiting": waiting}

    def _withdraw(self, request: Request, _connection: socket.socket) -> Answer:
        fitting = [one for one in self._boundary.waiting(self._training) if one.number == request.get("number")]
        return {"ok": bool([one for one in fitting if self._boundary.withdraw(one)])}

    def _complete(self, request: Request, _connection: socket.socket) -> Answer:
        with self._no_tensor_access(seconds=0.0):
            names = self._evaluator.complete(str(request.get("text", "")), frame_of(self._thread), self._find)
        return {"ok": True, "names": names}

    def _eval(self, request: Request, connection: socket.socket) -> Answer:
        text = str(request.get("code", ""))
        try:
            code = read_code(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return told_syntax(error, text)
        eval_ = self._eval_now if request.get("now") else self._eval_between
        answer = eval_(code, request, connection)
        answer = {"ran": True, **answer}
        if answer["ran"]:
            self._note_eval(request, text, answer)
        return answer

    def _eval_between(self, code: Code, request: Request, connection: socket.socket) -> Answer:
        gate = Gate()

        def work() -> Answer:
            self.here()
            return self._evaluator.run(code, lambda: frame_of(self._thread), self._find, gate)

        return self._between_steps(work, request, connection, gate)

    def _eval_now(self, code: Code, request: Request, connection: socket.socket) -> Answer:
        gate = Gate()

        def work() -> Answer:
            with self._no_tensor_access(seconds_of(request)):
                return self._evaluator.run(code, lambda: frame_of(self._thread), self._find, gate, here=False)

        asked = Asked(self._training, work, gate)
        threading.Thread(target=lambda: asked.end(asked.do()), name="holdfast-eval", daemon=True).start()
        return until_done(asked, seconds_of(request), connection)

    def _no_tensor_access(self, seconds: float) -> NoTensorAccess:
        return NoTensorAccess(
            beats=lambda: HEARTBEAT.beats,
            is_paused=lambda: self._boundary.stands_still(self._training),
            step_seconds=self._training.budget.step_seconds or 0.0,
            seconds=seconds,
        )

    # Changing

    def _set(self, request: Request, connection: socket.socket) -> Answer:
        wanted = read_setting(str(request.get("text", "")))

        def work() -> Answer:
            made = self._settings().change(wanted)
            row = {"from": made.was, "to": made.now, "what": made.what, "note": made.note}
            return {"ok": True, "made": made, "value": _said(made), **row}

        return self._recorded("set", work, request, connection)

    def _undo(self, request: Request, connection: socket.socket) -> Answer:
        number = int(request.get("change") or request.get("number") or 0)
        made = self._made.get(number)
        if made is None:
            raise Refused(f"there is no change {number} in this training; `holdfast journal --kind change` lists them")
        if isinstance(made, str):
            if made == "pause":
                return self._continue({**request, "undoes": number}, connection)
            raise Refused(f"change {number} is `{made}`, which cannot be undone")

        def work() -> Answer:
            back = self._settings().undo(made)
            what = f"undo {number} ({made.what})"
            return {"ok": True, "made": back, "value": _said(back), "from": back.was, "to": back.now, "what": what}

        return self._recorded("undo", work, {**request, "number": request.get("as")}, connection, undoes=number)

    def _save(self, request: Request, connection: socket.socket) -> Answer:
        from holdfast.inside.control.save_now import SaveNow

        if self._emergency is None:
            self._emergency = SaveNow(self._training, self._scope, self._process)
        emergency, path = self._emergency, request.get("path")

        def work() -> Answer:
            return {"ok": True, "finish": emergency.save(str(path) if path else None)}

        answer = self._between_steps(work, request, connection, Gate())
        if (finish := answer.pop("finish", None)) is not None:
            answer |= finish()
            answer["value"] = answer.get("path")
        return self._note("save", request, answer, what="save", path=answer.get("path"))

    def _cleanup(self, request: Request, connection: socket.socket) -> Answer:
        answer = self._between_steps(self._clean, request, connection, Gate())
        return self._note("cleanup", request, answer, what="cleanup", freed=answer.get("freed"))

    def _clean(self) -> Answer:
        before = _memory()
        for member in self._training.members.values():
            if (optimizer := member.optimizer()) is not None and optimizer is self._training.main_optimizer():
                optimizer.zero_grad(set_to_none=True)
        found = gc.collect()
        if _has_gpu():
            torch.cuda.empty_cache()
        freed = {name: max(0, before[name] - now) for name, now in _memory().items()}
        return {"ok": True, "freed": freed, "objects": found}

    def _pause(self, request: Request, connection: socket.socket) -> Answer:
        seconds = request.get("for")

        def work() -> Answer:
            fresh = self._boundary.pause(self._training, None if seconds is None else float(seconds))
            return {"ok": True, "value": "paused" if fresh else "it was paused already"}

        answer = self._between_steps(work, request, connection, Gate())
        return self._note("pause", request, answer, what="pause")

    def _continue(self, request: Request, _connection: socket.socket) -> Answer:
        was = self._boundary.go_on(self._training)
        answer: Answer = {"ok": was, "value": "goes on" if was else None, "error": None if was else "it was not paused"}
        if "undoes" in request:
            request = {**request, "number": request.get("as")}
        return self._note("continue", request, answer, what="continue")

    def _settings(self) -> Settings:
        if self._training.changes is None:
            self._training.changes = Settings(self._training)
        return self._training.changes

    # How it is done, and told

    def _between_steps(self, work: Callable[[], Answer], request: Request, connection: socket.socket, gate: Gate) -> Answer:
        return do_between_steps(self._boundary, self._training, work, request, connection, gate)

    def _recorded(self, do: str, work: Callable[[], Answer], request: Request, connection: socket.socket, **more: Any) -> Answer:
        answer = self._between_steps(work, request, connection, Gate())
        made = answer.pop("made", None)
        row = {"what": answer.get("what"), "from": answer.get("from"), "to": answer.get("to"), **more}
        return self._note(do, request, answer, made=made, **row)

    def _note(self, do: str, request: Request, answer: Answer, *, made: AppliedChange | None = None, **row: Any) -> Answer:
        """Give a change its number and write it into the journal, if it was made."""
        if not answer.get("ok"):
            return answer
        given = request.get("number")
        number = given if isinstance(given, int) else next_number(self._scope.run.path)
        self._made[number] = made if made is not None else do
        self._write("change", request, answer, number=number, do=do, **row)
        return {**answer, "number": number}

    def _note_eval(self, request: Request, text: str, answer: Answer) -> None:
        """Write down that code was run. The same code by the same person again and again is told at every doubling."""
        key = str(request.get("who", "")).partition(" ")[0], text
        if len(self._heard) >= _REMEMBERED:
            self._heard.clear()
        count = self._heard[key] = self._heard.get(key, 0) + 1
        if count & (count - 1) == 0:
            code = text if len(text) <= 500 else f"{text[:500]}…"
            answer["number"] = number = next_number(self._scope.run.path)
            self._made[number] = "eval"
            more = {"times": count} if count > 1 else {}
            self._write("eval", request, answer, number=number, code=code, now=bool(request.get("now")), ok=answer["ok"], **more)

    def _write(self, kind: str, request: Request, answer: Answer, **row: Any) -> None:
        recorder = self._training.recorder
        step = answer.get("step", self._training.step)
        with contextlib.suppress(OSError):
            recorder.run.journal.write(kind, who=request.get("who"), **row, step=step, rank=recorder.recording.rank)


def _said(made: AppliedChange) -> str:
    return f"{made.what.split(' ')[0]} {_number(made.was)} -> {_number(made.now)}"


def _number(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_number, value)) + "]"
    return "off" if value is None else f"{value:g}"


def _has_gpu() -> bool:
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _memory() -> dict[str, int]:
    """Bytes in use, on the host and on the GPU."""
    found = {"host": resident_of(os.getpid()) or 0}
    if _has_gpu():
        found |= {"gpu_allocated": torch.cuda.memory_allocated(), "gpu_reserved": torch.cuda.memory_reserved()}
    return found
