"""A setback: a stretch of a run in which something went wrong. Positions are those of `History`."""

from __future__ import annotations

from dataclasses import dataclass

NEVER = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Setback:
    """One thing that went wrong; with an `end` it was overcome or undone, and states from there on are good again."""

    code: str
    begin: int
    seen: int
    words: str
    end: int | None = None

    @property
    def lasts(self) -> bool:
        """Whether the run never came back from it."""
        return self.end is None

    @property
    def until(self) -> int | None:
        """Where it was over, if that is known."""
        return self.end if self.end is not None and self.end < NEVER else None

    def holds(self, position: int) -> bool:
        """Whether a state was saved within it."""
        return position > self.begin and (self.end is None or position < self.end)


def short(value: float) -> str:
    """A number with about four digits."""
    return f"{value:.4g}"
