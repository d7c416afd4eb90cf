"""Evaluate code sent by the user; returns its output, the value of its last expression, or its error.

What it prints is captured per thread, while the script's own output is unchanged.

A backward pass replaces `.grad` without holding the GIL; another thread that reads it then can crash the process. So code in a
side thread may read a tensor's shape but not its memory, unless the training is paused or hangs.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import io
import linecache
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from holdfast.inside.control.names import Names
from holdfast.inside.observers.heartbeat import HEARTBEAT

FILE = "<eval>"
_MAX_CHARACTERS = 64 * 1024  # of a value or an error
_MAX_PRINTED = 256 * 1024  # characters
_MAX_COMPLETIONS = 200
_HANG_SECONDS, _HANG_STEPS = 5.0, 5  # no batch, backward pass or update for the longer of the two: the training hangs
_POLL_EVERY = 0.01
_T = torch.Tensor
_METADATA = frozenset(
    [
        *(getattr(_T, name).__get__ for name in ("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf")),
        *(getattr(_T, name).__get__ for name in ("is_cuda", "itemsize", "nbytes", "_version")),
        *(_T.size, _T.dim, _T.numel, _T.nelement, _T.stride, _T.element_size, _T.is_contiguous, _T.is_floating_point),
        *(_T.__len__, _T.__hash__, _T.__dir__),
    ]
)


@dataclass(frozen=True, slots=True)
class Code:
    """Parsed code: statements, the last expression, and the names that it declares `global`."""

    text: str
    statements: CodeType | None
    last: CodeType | None
    declared: frozenset[str]


def read_code(text: str) -> Code:
    """Parse and compile code. Raises SyntaxError, or ValueError for null bytes."""
    tree = ast.parse(text, FILE)
    declared = frozenset(name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names)
    last: Any = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    return Code(
        text,
        compile(tree, FILE, "exec", dont_inherit=True) if tree.body else None,
        compile(ast.Expression(last.value), FILE, "eval", dont_inherit=True) if last is not None else None,
        declared,
    )


def evaluate(code: Code, names: Names, stoppable: StoppableCode, *, in_thread: bool = True) -> dict[str, Any]:
    """Run code with these names; `in_thread`: in the training's thread. Only Ctrl-C in the terminal escapes."""
    names.drop_hidden()
    before, value, failure = dict(names), None, None
    with captured() as output:
        try:
            try:
                stoppable.start()
                if code.statements is not None:
                    exec(code.statements, names)
                value = _shown(eval(code.last, names)) if code.last is not None else None  # held by no frame that may outlive it
            except EvalTimeout:
                raise
            except BaseException as error:  # noqa: BLE001 - the user's code, so the error goes back to the user
                failure = error
            stoppable.finish()  # after this nothing can be raised here
        except EvalTimeout:  # raised at most once, possibly as late as in `finish`
            stoppable.finish()
        try:
            assigned = [name for name, own in dict(names).items() if before.get(name, names) is not own]
            names.assign(assigned, code.declared, in_thread=in_thread)
        except RuntimeError as error:
            failure = error if failure is None else failure
        names.release()
    if isinstance(failure, KeyboardInterrupt) and in_thread:
        raise failure
    if stoppable.stopped:
        return {"ok": False, "value": None, "output": output.text(), "error": "it took too long and was stopped"}
    text = format_error(failure, code.text) if failure is not None else None
    return {"ok": text is None, "value": value, "output": output.text(), "error": text}


def complete(text: str, names: Names) -> list[str]:
    """Complete a name, or an attribute after a dotted path."""
    path, dot, _ = text.rpartition(".")
    try:
        if not all(part.isidentifier() for part in path.split(".") if dot):
            return []
        found = [f"{path}.{name}" for name in dir(eval(path, names))] if dot else names.all_names()
        return sorted(name for name in found if name.startswith(text))[:_MAX_COMPLETIONS]
    except Exception:  # noqa: BLE001 - a failed completion is an empty one
        return []
    finally:
        names.release()


def format_error(error: BaseException, text: str) -> str:
    """The traceback from the user's code on."""
    trace, error.__traceback__ = error.__traceback__, None
    while trace is not None and trace.tb_frame.f_code.co_filename != FILE:
        trace = trace.tb_next
    linecache.cache[FILE] = (len(text), None, text.splitlines(keepends=True), FILE)
    lines = traceback.format_exception(type(error), error, trace)
    linecache.cache.pop(FILE, None)
    if trace is None:  # code that does not parse
        lines = traceback.format_exception_only(type(error), error)
    return _truncated("".join(lines).rstrip(), _MAX_CHARACTERS)


def _shown(value: Any) -> str | None:
    return None if value is None else _truncated(repr(value), _MAX_CHARACTERS)


def _truncated(text: str, size: int) -> str:
    hidden = len(text) - size
    return text if hidden <= 0 else f"{text[:size]}… {hidden:,} more characters"


class CapturedOutput(io.StringIO):
    """The output of one evaluation."""

    def write(self, text: str) -> int:
        """Keep the text up to the limit, and a little more to show that there was more."""
        return super().write(text) if self.tell() <= _MAX_PRINTED else len(text)

    def text(self) -> str:
        """The output; what is over the limit is counted as far as it was kept."""
        return _truncated(self.getvalue(), _MAX_PRINTED)


class _ThreadStream:
    """Replaces `sys.stdout` and the like: an evaluating thread gets its own stream, all others the original."""

    def __init__(self, original: Any, stream: Any) -> None:
        self._original, self._stream = original, stream
        self.thread: int | None = threading.get_ident()

    def _current(self) -> Any:
        return self._stream if threading.get_ident() == self.thread else self._original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._current(), name)

    def __iter__(self) -> Any:
        return iter(self._current())


@contextlib.contextmanager
def captured() -> Iterator[CapturedOutput]:
    """Capture this thread's stdout and stderr together; its stdin is empty."""
    output = CapturedOutput()
    streams = {"stdout": output, "stderr": output, "stdin": io.StringIO()}
    originals = {name: original for name in streams if (original := getattr(sys, name)) is not None}
    replaced = {name: _ThreadStream(original, streams[name]) for name, original in originals.items()}
    vars(sys).update(replaced)
    try:
        yield output
    finally:
        for name, stream in replaced.items():
            stream.thread = None  # it may stay, behind that of another evaluation
            if getattr(sys, name) is stream:
                setattr(sys, name, originals[name])


class TensorInUse(RuntimeError):
    """Code in a side thread tried to read or write a tensor of a running training."""


class NoTensorAccess(TorchFunctionMode):
    """Wraps code of a side thread; checks again at every tensor use, since a hang or pause can end."""

    def __init__(self, *, is_paused: Callable[[], bool], step_seconds: float, timeout: float) -> None:
        super().__init__()
        self._is_paused, self._timeout = is_paused, timeout
        self._hang_seconds = max(_HANG_SECONDS, _HANG_STEPS * step_seconds)
        self._hung_at = -1  # heartbeat count at which the training was seen to hang

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function, or raise TensorInUse in the evaluated code."""
        if func in _METADATA or self._is_paused() or self._hangs():
            return func(*args, **(kwargs or {}))
        raise TensorInUse(
            "the training may be writing this tensor: without --now the code runs between two steps; with --now it can use "
            f"tensors while the training is paused, or once it has made no progress for {self._hang_seconds:.0f} s"
        )

    def _hangs(self) -> bool:
        """Watch the heartbeat; True if it stands still for long enough."""
        beats = HEARTBEAT.beats
        if beats == self._hung_at:
            return True
        if self._hang_seconds >= self._timeout:  # the code would time out first
            return False
        deadline = time.monotonic() + self._hang_seconds
        while time.monotonic() < deadline:
            if HEARTBEAT.beats != beats:
                return False
            time.sleep(_POLL_EVERY)
        self._hung_at = beats
        return True


class EvalTimeout(BaseException):
    """Raised in evaluated code when its time is up."""


def _raise_in(thread: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(EvalTimeout))


def _take_back() -> None:
    """Nothing is raised in this thread after this.

    What is under way is replaced and met here, not withdrawn: after that, Python 3.11 looks for it at every call for ever, and a
    profiler (`sys.setprofile`) hangs.
    """
    with contextlib.suppress(EvalTimeout):
        _raise_in(threading.get_ident())
        for _ in range(1000):  # it comes at the end of a round
            pass


class StoppableCode:
    """Evaluated code that another thread can stop while it runs."""

    def __init__(self) -> None:
        self._lock, self._thread = threading.Lock(), 0
        self.stopped = False

    def start(self) -> None:
        """The code starts in this thread."""
        self._thread = threading.get_ident()

    @property
    def is_running(self) -> bool:
        """Whether user code runs that can be stopped."""
        return self._thread != 0

    def stop(self) -> bool:
        """Raise EvalTimeout in the code, once, at its next bytecode; False if it is not running."""
        with self._lock:
            if not self._thread or self.stopped:
                return False
            self.stopped = True
            _raise_in(self._thread)
            return True

    def finish(self) -> None:
        """The code has ended. EvalTimeout may still arrive inside this call, but not after it."""
        with self._lock:
            self._thread = 0
        if self.stopped:
            _take_back()
