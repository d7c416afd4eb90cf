"""Keep Holdfast's own errors out of the user's training loop.

Every call from torch into Holdfast goes through here. An error is counted and reported as `holdfast-degraded`; after five the
entry point is switched off, which is reported too.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

_MAX_FAILURES = 5
Result = TypeVar("Result")


class Shield:
    """Wraps entry points; `report` gets the name of the entry point and the error."""

    def __init__(self, report: Callable[[str, BaseException], None]) -> None:
        self._report = report
        self.failures: dict[str, int] = {}  # empty in a healthy process
        self._raise = os.environ.get("HOLDFAST_DEBUG") == "raise"

    def __call__(self, entry: Callable[..., Result]) -> Callable[..., Result | None]:
        """Wrap an entry point so that it returns None instead of raising. Ctrl-C still gets through."""
        name = getattr(entry, "__name__", "entry")

        @functools.wraps(entry)
        def shielded(*args: Any, **kwargs: Any) -> Result | None:
            if self.failures and self.failures.get(name, 0) >= _MAX_FAILURES:
                return None
            try:
                return entry(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - this is the shield
                self.failed(name, error)
                return None

        return shielded

    def closed(self, name: str) -> bool:
        """Whether an entry point is switched off."""
        return self.failures.get(name, 0) >= _MAX_FAILURES

    def failed(self, name: str, error: Exception) -> None:
        """Count and report an error; called directly by entry points with their own `try`."""
        if self._raise:
            raise error
        self.failures[name] = self.failures.get(name, 0) + 1
        try:
            self._report(name, error)
            if self.failures[name] == _MAX_FAILURES:
                self._report(f"{name}: off from now on", error)
        except Exception:  # noqa: BLE001 - it cannot even be reported
            self.failures[name] = _MAX_FAILURES
