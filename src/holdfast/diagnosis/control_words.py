"""The words of the journal for what someone did from outside: code that was run, settings that were changed, saves, pauses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from holdfast.probe.values import number
from holdfast.probe.words import plain

_CODE = 60


def row_words(row: Mapping[str, Any]) -> str:
    """What was done, by whom, under which number."""
    words = _eval(row) if row.get("kind") == "eval" else _DID.get(str(row.get("do")), _other)(row)
    who = f", by {plain(str(row['who']).partition(' pid ')[0])}" if row.get("who") else ""
    return f"{words}{who} (no. {row['number']})" if row.get("number") is not None else f"{words}{who}"


def _eval(row: Mapping[str, Any]) -> str:
    code = plain(str(row.get("code", "")).strip())
    first = code if len(code) <= _CODE else f"{code[: _CODE - 1]}…"
    return f"ran `{first}`{' at once' if row.get('now') else ''}{'' if row.get('ok', True) else ', which failed'}"


def _set(row: Mapping[str, Any]) -> str:
    return f"{_name(row)} {values(row.get('from'))} → {values(row.get('to'))}"


def _undo(row: Mapping[str, Any]) -> str:
    setting = str(row.get("what", "")).partition("(")[2].rstrip(")").split(" ")[0]
    return f"undid no. {row.get('undoes')}: {plain(setting)} {values(row.get('from'))} → {values(row.get('to'))}"


def _save(row: Mapping[str, Any]) -> str:
    return f"saved {plain(str(row.get('path') or 'a checkpoint'))}"


def _other(row: Mapping[str, Any]) -> str:
    return plain(str(row.get("what") or row.get("do")))


def _name(row: Mapping[str, Any]) -> str:
    return plain(str(row.get("what") or "setting").split(" ")[0])


def values(value: Any) -> str:
    """A value, or those of each parameter group."""
    if isinstance(value, list):
        return "[" + ", ".join(map(values, value)) + "]"
    return "off" if value is None else number(value) if isinstance(value, (int, float)) else plain(str(value))


_DID: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "set": _set,
    "undo": _undo,
    "save": _save,
    "rollback": lambda row: f"rolled back to step {row.get('to')} ({plain(Path(str(row.get('path'))).name)})",
    "pause": lambda _: "paused",
    "continue": lambda _: "resumed",
}
