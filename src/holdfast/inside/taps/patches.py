"""Put a function of ours in the place of one of torch's, and put the original back.

A patch is taken out only if it is still in place: another tool may have wrapped it since.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Patches:
    """The replaced attributes, in the order they were replaced."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace `owner.name` by `make(original)`; an owner without that name is left alone (another torch version)."""
        original = getattr(owner, name, None)
        if original is None:
            return
        ours = make(original)
        for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
            if hasattr(original, attribute):
                setattr(ours, attribute, getattr(original, attribute))
        ours.__wrapped__ = original
        setattr(owner, name, ours)
        self._undo.append((owner, name, original, ours))

    def restore(self) -> None:
        """Put every original back that nobody else has wrapped."""
        while self._undo:
            owner, name, original, ours = self._undo.pop()
            if getattr(owner, name, None) is ours:
                setattr(owner, name, original)
