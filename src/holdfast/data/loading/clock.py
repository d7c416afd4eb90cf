"""A clock that knows what is being done: each moment counts for the innermost phase only."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

READ, DECODE, AUGMENT, REST, COLLATE, TRANSFER, OTHER = "read", "decode", "augment", "sample", "collate", "transfer", "other"
PHASES = (READ, DECODE, AUGMENT, REST, COLLATE, TRANSFER, OTHER)


class Clock:
    """Adds up seconds by phase, of the thread that made it. Other threads go by unnoticed: that one waits for them."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._stack: list[str] = []
        self._since = 0.0
        self._thread = threading.get_ident()

    @property
    def runs(self) -> bool:
        """Whether this moment counts for anything."""
        return bool(self._stack) and threading.get_ident() == self._thread

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What happens inside counts for this phase, unless another one begins in it."""
        self._turn()
        self._stack.append(name)
        try:
            yield
        finally:
            self._turn()
            self._stack.pop()

    def timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """A function that counts for a phase while the clock runs; a generator that it returns counts as it is drawn from."""

        @functools.wraps(function, updated=())
        def counted(*values: Any, **named: Any) -> Any:
            if not self.runs:
                return function(*values, **named)
            with self.phase(name):
                result = function(*values, **named)
            return self._drawn(result, name) if hasattr(result, "send") and hasattr(result, "__next__") else result

        return counted

    def _drawn(self, generator: Any, name: str) -> Iterator[Any]:
        while True:
            try:
                with self.phase(name):
                    one = next(generator)
            except StopIteration:
                return
            yield one

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._since
        self._since = now


class TimedCall:
    """Something that can be called, with a clock around it; in all else it is what it was."""

    def __init__(self, inner: Any, clock: Clock, phase: str) -> None:
        self._inner, self._call = inner, clock.timed(inner.__call__ if hasattr(inner, "__call__") else inner, phase)  # noqa: B004

    def __call__(self, *values: Any, **named: Any) -> Any:
        """Call it."""
        return self._call(*values, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
