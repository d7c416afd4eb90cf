"""Evaluate code sent by the user; returns its output, the value of its last expression, or its error.

What it prints is captured per thread, while the script's own output goes on as before.
"""

from __future__ import annotations

import ast
import contextlib
import io
import linecache
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from holdfast.inside.control.names import Finder, Names, Scopes
from holdfast.inside.control.tensor_access import EvalTimeout, StoppableCode

FILE = "<eval>"
_MAX_CHARACTERS = 64 * 1024  # of a value or an error
_MAX_PRINTED = 256 * 1024  # characters; further ones are only counted
_MAX_COMPLETIONS = 200


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


@dataclass(slots=True)
class _Evaluation:
    """The outcome of one evaluation."""

    value: str | None = None
    error: str | None = None
    interrupt: KeyboardInterrupt | None = None


class Evaluator:
    """Evaluates code in this process. New names stay for the next evaluation."""

    def __init__(self) -> None:
        self._names = Names()

    def run(
        self, code: Code, frame: Callable[[], FrameType | None], find: Finder, stoppable: StoppableCode, *, in_thread: bool = True
    ) -> dict[str, Any]:
        """Run code with the names of a frame; `in_thread`: it is this thread's. Only Ctrl-C in the terminal escapes."""
        evaluation = _Evaluation()
        with captured() as output:
            self._names.enter(Scopes(frame(), find, in_thread=in_thread), code.declared)
            try:
                self._attempt(code, evaluation, stoppable)
                stoppable.finish()  # after this nothing can be raised here
            except EvalTimeout:  # raised at most once, possibly as late as in `finish`
                evaluation.value = None
                stoppable.finish()
            self._names.leave()
        if evaluation.interrupt is not None and in_thread:
            raise evaluation.interrupt
        error = "it took too long and was stopped" if stoppable.stopped else evaluation.error
        return {"ok": error is None, "value": evaluation.value, "output": output.text(), "error": error}

    def _attempt(self, code: Code, evaluation: _Evaluation, stoppable: StoppableCode) -> None:
        try:
            stoppable.start()
            evaluation.value = self._evaluate(code)
        except EvalTimeout:
            raise
        except KeyboardInterrupt as interrupt:
            evaluation.interrupt, evaluation.error = interrupt, "interrupted by Ctrl-C in the terminal of the training"
        except BaseException as error:  # noqa: BLE001 - the user's code, so the error goes back to the user
            evaluation.error = _format_error(error, code.text)

    def _evaluate(self, code: Code) -> str | None:
        if code.statements is not None:
            exec(code.statements, self._names)
        if code.last is None:
            return None
        value = eval(code.last, self._names)
        return None if value is None else _truncated(repr(value))

    def complete(self, text: str, frame: FrameType | None, find: Finder) -> list[str]:
        """Complete a name, or an attribute after a dotted path."""
        self._names.enter(Scopes(frame, find, in_thread=False), frozenset())
        try:
            path, dot, prefix = text.rpartition(".")
            if not dot:
                return sorted(name for name in self._names.keys() if name.startswith(prefix))[:_MAX_COMPLETIONS]  # noqa: SIM118
            if not all(part.isidentifier() for part in path.split(".")):
                return []
            names = dir(eval(path, self._names))
            return sorted(f"{path}.{name}" for name in names if name.startswith(prefix))[:_MAX_COMPLETIONS]
        except Exception:  # noqa: BLE001 - a failed completion is an empty one
            return []
        finally:
            self._names.leave()


def _format_error(error: BaseException, text: str) -> str:
    """The traceback from the user's code on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != FILE:
        trace = trace.tb_next
    linecache.cache[FILE] = (len(text), None, text.splitlines(keepends=True), FILE)
    try:
        if isinstance(error, SyntaxError) and trace is None:
            lines = traceback.format_exception_only(type(error), error)
        else:
            lines = traceback.format_exception(type(error), error, trace)
    except Exception:  # noqa: BLE001 - the error's own __str__ raises
        lines = [f"{type(error).__name__}\n"]
    finally:
        linecache.cache.pop(FILE, None)
    error.__traceback__ = None
    return _truncated("".join(lines).rstrip())


def syntax_error(error: BaseException, text: str) -> dict[str, Any]:
    """The response to code that does not parse."""
    return {"ok": False, "value": None, "output": "", "error": _format_error(error, text)}


def _truncated(text: str) -> str:
    hidden = len(text) - _MAX_CHARACTERS
    return text if hidden <= 0 else f"{text[:_MAX_CHARACTERS]}… {hidden:,} more characters"


class CapturedOutput(io.StringIO):
    """The output of one evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self._dropped = 0

    def write(self, text: str) -> int:
        """Keep the text up to the limit."""
        room = _MAX_PRINTED - self.tell()
        super().write(text[:room])
        self._dropped += max(0, len(text) - room)
        return len(text)

    def text(self) -> str:
        """The output, with the number of dropped characters."""
        more = f"\n… {self._dropped:,} more characters" if self._dropped else ""
        return self.getvalue() + more


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
