"""One thing that differs, in words, with what it stops and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Stops = Literal["weights", "resume", "use", ""]
"""What cannot be done: put the weights in place; go on with the training; get right answers although all shapes fit; nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What differs. `names` are the weights or settings that it is seen in."""

    kind: str  # head, vocabulary, depth, optimizer, settings … stable, for --json
    words: str
    stops: Stops = ""
    fix: str = ""
    names: tuple[str, ...] = ()

    def as_row(self) -> dict[str, Any]:
        """For --json."""
        return {"kind": self.kind, "words": self.words, "stops": self.stops or None, "fix": self.fix or None, "names": self.names}


@dataclass(frozen=True, slots=True)
class Labels:
    """How the two sides are called in sentences: "the checkpoint" and "the model", or two file names."""

    one: str
    other: str

    def both(self, one: object, other: object) -> str:
        """`80 in the checkpoint and 3 in the model`."""
        return f"{one} in {self.one} and {other} in {self.other}"


def count(number: int, what: str, many: str = "") -> str:
    """`1 weight`, `12 weights`."""
    return f"{number:,} {what if number == 1 else many or what + 's'}"


def some(names: object, shown: int = 3) -> str:
    """The first few of a list, and how many more there are."""
    listed = [str(name) for name in names]  # type: ignore[attr-defined]
    more = f" and {len(listed) - shown:,} more" if len(listed) > shown else ""
    return ", ".join(listed[:shown]) + more
