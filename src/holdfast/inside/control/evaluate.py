"""Run code that someone sent, and give back what it printed, the value of its last expression, or its error."""

from __future__ import annotations

import ast
import linecache
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from holdfast.inside.control.captured_output import captured
from holdfast.inside.control.names import Finder, Names, Scopes
from holdfast.inside.control.tensor_access import Gate, TookTooLong

FILE = "<eval>"
_VALUE_CHARACTERS, _ERROR_CHARACTERS = 64 * 1024, 64 * 1024


@dataclass(frozen=True, slots=True)
class Code:
    """Code that was read: statements, the last expression, the names that it declares `global`."""

    text: str
    statements: CodeType | None
    last: CodeType | None
    declared: frozenset[str]


def read_code(text: str) -> Code:
    """Read code. Raises SyntaxError, or ValueError for what no file could hold."""
    tree = ast.parse(text, FILE)
    declared = frozenset(name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names)
    tree.body = [_NotDeclared().visit(statement) for statement in tree.body]
    last: Any = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    ast.fix_missing_locations(tree)
    return Code(
        text,
        compile(tree, FILE, "exec", dont_inherit=True) if tree.body else None,
        compile(ast.Expression(last.value), FILE, "eval", dont_inherit=True) if last is not None else None,
        declared,
    )


class _NotDeclared(ast.NodeTransformer):
    """Takes `global` away from the outermost level: there, the names themselves know what is meant."""

    def visit_Global(self, node: ast.Global) -> ast.stmt:
        return ast.copy_location(ast.Pass(), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.stmt:
        return node


@dataclass(slots=True)
class _Outcome:
    """How far an evaluation has come, and what came of it."""

    begun: bool = False
    over: bool = False
    value: str | None = None
    error: str | None = None
    interrupt: KeyboardInterrupt | None = None


class Evaluator:
    """Evaluates code of one process. Names that it makes stay for the next time."""

    def __init__(self) -> None:
        self._names = Names()

    def run(
        self, code: Code, frame: Callable[[], FrameType | None], find: Finder, gate: Gate, *, here: bool = True
    ) -> dict[str, Any]:
        """Run it with the names of a frame; the answer. Only Ctrl-C of the script's own user gets out of here."""
        outcome = _Outcome()
        with captured() as printed:
            self._names.enter(Scopes(frame(), find, here=here), code.declared)
            while not outcome.over:
                try:
                    if not outcome.begun:
                        outcome.begun = True
                        self._attempt(code, outcome, gate)
                    gate.close()  # when this returns, nothing can be raised here any more
                    outcome.over = True
                except TookTooLong:  # it is raised once at most: this is the only place where it can still arrive
                    outcome.value = None
            self._names.leave()
        if outcome.interrupt is not None and here:
            raise outcome.interrupt
        error = "it took too long and was stopped" if gate.stopped else outcome.error
        return {"ok": error is None, "value": outcome.value, "output": printed.text(), "error": error}

    def _attempt(self, code: Code, outcome: _Outcome, gate: Gate) -> None:
        try:
            gate.open()
            outcome.value = self._evaluate(code)
        except TookTooLong:
            raise
        except KeyboardInterrupt as given:
            outcome.interrupt, outcome.error = given, "interrupted by Ctrl-C in the terminal of the training"
        except BaseException as raised:  # noqa: BLE001 - it is the sender's, and goes back to the sender
            outcome.error = _told(raised, code.text)

    def _evaluate(self, code: Code) -> str | None:
        if code.statements is not None:
            exec(code.statements, self._names)
        if code.last is None:
            return None
        value = eval(code.last, self._names)
        return None if value is None else _short(repr(value), _VALUE_CHARACTERS)

    def complete(self, start: str, frame: FrameType | None, find: Finder) -> list[str]:
        """Names that begin so; behind a dot the attributes of what stands before it, if that is only names and dots."""
        scopes = Scopes(frame, find, here=False)
        self._names.enter(scopes, frozenset())
        try:
            path, dot, begin = start.rpartition(".")
            if not dot:
                return sorted(name for name in self._names.keys() if name.startswith(begin))[:200]  # noqa: SIM118
            if not all(part.isidentifier() for part in path.split(".")):
                return []
            thing = eval(path, self._names)
            return sorted(f"{path}.{name}" for name in dir(thing) if name.startswith(begin))[:200]
        except Exception:  # noqa: BLE001 - a completion that fails is none
            return []
        finally:
            self._names.leave()


def _told(raised: BaseException, text: str) -> str:
    """The error as Python tells it, from the sender's code on."""
    trace = raised.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != FILE:
        trace = trace.tb_next
    linecache.cache[FILE] = (len(text), None, text.splitlines(keepends=True), FILE)
    try:
        if isinstance(raised, SyntaxError) and trace is None:
            told = traceback.format_exception_only(type(raised), raised)
        else:
            told = traceback.format_exception(type(raised), raised, trace)
    except Exception:  # noqa: BLE001 - an error whose own text raises
        told = [f"{type(raised).__name__}\n"]
    finally:
        linecache.cache.pop(FILE, None)
    raised.__traceback__ = None
    return _short("".join(told).rstrip(), _ERROR_CHARACTERS)


def told_syntax(error: BaseException, text: str) -> dict[str, Any]:
    """The answer to code that cannot be read."""
    return {"ok": False, "value": None, "output": "", "error": _told(error, text)}


def _short(text: str, at_most: int) -> str:
    return text if len(text) <= at_most else f"{text[:at_most]}… {len(text) - at_most:,} more characters"


def frame_of(thread: int) -> FrameType | None:
    """What a thread is doing now."""
    return sys._current_frames().get(thread)
