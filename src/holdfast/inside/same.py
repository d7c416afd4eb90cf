"""Whether things are the very ones that were there before. By weak references: a dead thing's identity is soon another one's."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any


class Same:
    """Remembers some things without keeping them alive."""

    def __init__(self, things: Iterable[Any] = ()) -> None:
        self._references = [weakref.ref(thing) for thing in things]

    def as_before(self, things: Sequence[Any]) -> bool:
        """Whether these are they, in the same order."""
        known = self._references
        return len(things) == len(known) and all(reference() is thing for reference, thing in zip(known, things, strict=True))
