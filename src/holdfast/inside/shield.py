"""Keep Holdfast's own mistakes away from the user's loop.

Every entry from torch into Holdfast goes through here. An error inside is counted and reported as `holdfast-degraded`; after a
few of them the entry is closed, which is reported too, and costs nothing any more.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

_CLOSED_AFTER = 5
Result = TypeVar("Result")


class Shield:
    """Wraps entries; `report` is told the name of the entry and the error."""

    def __init__(self, report: Callable[[str, BaseException], None]) -> None:
        self._report = report
        self.failures: dict[str, int] = {}  # empty in a healthy process
        self._raise = os.environ.get("HOLDFAST_DEBUG") == "raise"

    def __call__(self, entry: Callable[..., Result]) -> Callable[..., Result | None]:
        """The same entry, from which no error of ours comes out. Ctrl-C still does."""
        name = getattr(entry, "__name__", "entry")

        @functools.wraps(entry)
        def shielded(*args: Any, **kwargs: Any) -> Result | None:
            if self.failures and self.failures.get(name, 0) >= _CLOSED_AFTER:
                return None
            try:
                return entry(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - this is the shield
                self.failed(name, error)
                return None

        return shielded

    def closed(self, name: str) -> bool:
        """Whether an entry has failed too often."""
        return self.failures.get(name, 0) >= _CLOSED_AFTER

    def failed(self, name: str, error: Exception) -> None:
        """Count and tell an error of an entry that shields itself."""
        if self._raise:
            raise error
        self.failures[name] = self.failures.get(name, 0) + 1
        try:
            self._report(name, error)
            if self.failures[name] == _CLOSED_AFTER:
                self._report(f"{name}: off from now on", error)
        except Exception:  # noqa: BLE001 - nothing is left that could be told
            self.failures[name] = _CLOSED_AFTER
