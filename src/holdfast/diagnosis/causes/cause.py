"""A cause and its fixes: knowledge as data."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

_SETTABLE = {"lr": "lr", "weight_decay": "weight_decay", "clip_norm": "clip"}  # in a run that is alive, by `holdfast set`


@dataclass(frozen=True, slots=True)
class Fix:
    """One thing to do: a text, and where a setting exists, how to change it."""

    text: str
    setting: str | None = field(default=None, kw_only=True)
    op: str | None = field(default=None, kw_only=True)
    value: Any = field(default=None, kw_only=True)
    command: str | None = field(default=None, kw_only=True)  # for a Holdfast run; {run} is its name
    needs: tuple[str, ...] = field(default=(), kw_only=True)  # signs without which it is not offered
    ruled_out_by: tuple[str, ...] = field(default=(), kw_only=True)  # signs that the run does it already, or cannot

    def applies(self, present: Collection[str]) -> bool:
        """Whether it is advice for a run with these signs."""
        return all(sign in present for sign in self.needs) and not any(sign in present for sign in self.ruled_out_by)

    @property
    def change(self) -> str:
        """The change of the setting: `lr × 0.25`, `shuffle = True`; empty unless its value is a number."""
        if self.setting is None or not isinstance(self.value, (int, float)):
            return ""
        value = str(self.value) if isinstance(self.value, bool) else f"{self.value:g}"
        return f"{self.setting} {'×' if self.op == 'multiply' else '='} {value}"

    def as_row(self) -> dict[str, Any]:
        """The fix as the journal holds it."""
        change = {"setting": self.setting, "op": self.op, "value": self.value} if self.setting else {}
        return {"words": self.text, **change}

    def command_for(self, run: str | None, *, live: bool = False) -> str | None:
        """The command that applies the fix to a Holdfast run; in a live run it changes the setting."""
        if run is None:
            return None
        if self.command is not None:
            return self.command.format(run=run)
        name, sign = _SETTABLE.get(self.setting or ""), {"multiply": "*=", "set": "="}.get(self.op or "")
        if not live or name is None or sign is None or not isinstance(self.value, (int, float)):
            return None
        return f"holdfast set -t {run} '{name}{sign}{self.value:g}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why something happened: which findings it explains, and which signs support it, contradict it, or rule it out.

    Signs are names that `diagnosis.signs` and `curve_signs` derive from evidence and curves. A cause with `needs` is named
    only when all of them are there, one with `needs_one` when any of them is.
    """

    code: str
    seen_by: tuple[str, ...]
    because: str
    signs: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    needs_one: tuple[str, ...] = ()
    ruled_out_by: tuple[str, ...] = ()
    likely: float = 0.3
    fixes: tuple[Fix, ...] = ()

    @property
    def title(self) -> str:
        """The code in words: learning rate too high."""
        return self.code.replace("-", " ").replace("non finite", "non-finite")

    def is_possible(self, present: Collection[str]) -> bool:
        """Whether the signs that are present allow it."""
        needed = all(sign in present for sign in self.needs) and (
            not self.needs_one or any(sign in present for sign in self.needs_one)
        )
        return needed and not any(sign in present for sign in self.ruled_out_by)
