"""Observe the return values of plain Python functions by swapping their `__code__`, so that each stays the same object.

Replacing the function would break `pickle` (which compares the object with the one found by name), `from … import` during that
time, and TorchScript, which reads the source.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from types import CodeType, FunctionType
from typing import Any

Call = Callable[[tuple[Any, ...], dict[str, Any]], Any]


class ObservedFunctions:
    """The functions whose code is swapped, with what is needed to restore them."""

    def __init__(self) -> None:
        self._undo: list[tuple[FunctionType, CodeType, dict[str, Any] | None, CodeType]] = []

    def observe(self, function: Any, make: Callable[[Callable[..., Any]], Call]) -> None:
        """Route every call of `function` to `make(original)`. Closures and decorated functions are left alone."""
        if not isinstance(function, FunctionType) or function.__code__.co_freevars or hasattr(function, "__signature__"):
            return
        code, defaults = function.__code__, function.__kwdefaults__
        original = FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
        original.__kwdefaults__ = defaults
        ours, signature = _swapped_code(function, code)
        function.__signature__ = signature  # type: ignore[attr-defined]
        function.__kwdefaults__ = {**(defaults or {}), "_holdfast_call": make(original)}  # before the code that needs it
        function.__code__ = ours
        self._undo.append((function, code, defaults, ours))

    def restore(self) -> None:
        """Give every function its own code back."""
        while self._undo:
            function, code, defaults, ours = self._undo.pop()
            if function.__code__ is ours:
                function.__code__ = code
                function.__kwdefaults__ = defaults
                del function.__signature__  # type: ignore[attr-defined]


def _forward(*args: Any, _holdfast_call: Call, **kwargs: Any) -> Any:
    """Its code replaces a function's. It runs with that function's globals, so it may only use its arguments."""
    return _holdfast_call(args, kwargs)


@cache  # a script may evaluate at every step
def _swapped_code(function: FunctionType, code: CodeType) -> tuple[CodeType, inspect.Signature]:
    """The replacement code, with the function's name and source position, and the signature that it would hide."""
    ours = _forward.__code__.replace(co_name=code.co_name, co_filename=code.co_filename, co_firstlineno=code.co_firstlineno)
    return ours, inspect.signature(function)
