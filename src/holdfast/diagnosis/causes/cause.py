"""A cause and its fixes: knowledge as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Fix:
    """One thing to do: words, and where a setting exists, how to change it."""

    words: str
    setting: str | None = field(default=None, kw_only=True)
    op: str | None = field(default=None, kw_only=True)
    value: Any = field(default=None, kw_only=True)
    command: str | None = field(default=None, kw_only=True)  # for a run of ours; {run} is its name

    def as_row(self) -> dict[str, Any]:
        """The fix as the journal holds it."""
        change = {"setting": self.setting, "op": self.op, "value": self.value} if self.setting else {}
        return {"words": self.words, **change}

    def command_for(self, run: str | None) -> str | None:
        """The command that does it, for a run of ours."""
        return self.command.format(run=run) if self.command is not None and run is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why something happened: which findings it explains, and which signs speak for it, against it, or rule it out.

    Signs are names that `diagnosis.signs` and `curve_signs` derive from evidence and curves. A cause with `needs` is named
    only when all of them are there.
    """

    code: str
    seen_by: tuple[str, ...]
    because: str
    signs: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    ruled_out_by: tuple[str, ...] = ()
    likely: float = 0.3
    fixes: tuple[Fix, ...] = ()
