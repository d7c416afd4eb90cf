"""Hear what functions of torch's give, while each stays the very same object: only its code is another for a while.

A function that was put in the place of another would be met by whoever looks: `pickle` finds a function by its name and asks
whether that is the object it has, whoever takes it meanwhile has the wrong one for ever, and TorchScript reads its source.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from types import CodeType, FunctionType
from typing import Any

Call = Callable[[tuple[Any, ...], dict[str, Any]], Any]


class ObservedFunctions:
    """The functions that are heard, and what they were."""

    def __init__(self) -> None:
        self._undo: list[tuple[FunctionType, CodeType, dict[str, Any] | None, CodeType]] = []

    def hear(self, function: Any, make: Callable[[Callable[..., Any]], Call]) -> None:
        """Have every call of `function` go to `make(original)`. What is no plain function of its module is left alone."""
        if not isinstance(function, FunctionType) or function.__code__.co_freevars or hasattr(function, "__signature__"):
            return
        code, defaults = function.__code__, function.__kwdefaults__
        original = FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
        original.__kwdefaults__ = defaults
        ours, signature = _looking_like(function, code)
        function.__signature__ = signature  # type: ignore[attr-defined]
        function.__kwdefaults__ = {**(defaults or {}), "_heard_by": make(original)}  # before the code that needs it
        function.__code__ = ours
        self._undo.append((function, code, defaults, ours))

    def stop(self) -> None:
        """Give every function its own code back."""
        while self._undo:
            function, code, defaults, ours = self._undo.pop()
            if function.__code__ is ours:
                function.__code__ = code
                function.__kwdefaults__ = defaults
                del function.__signature__  # type: ignore[attr-defined]


def _pass_on(*args: Any, _heard_by: Call, **kwargs: Any) -> Any:
    """Its code stands in for a function's; with that function's globals, all it knows is what it is given."""
    return _heard_by(args, kwargs)


@cache  # a script may go into evaluation at every step
def _looking_like(function: FunctionType, code: CodeType) -> tuple[CodeType, inspect.Signature]:
    """The code that stands in for a function's, with the same name and source, and the signature that it would hide."""
    ours = _pass_on.__code__.replace(co_name=code.co_name, co_filename=code.co_filename, co_firstlineno=code.co_firstlineno)
    return ours, inspect.signature(function)
