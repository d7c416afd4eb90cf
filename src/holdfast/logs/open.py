"""Open anybody's log: recognise what it is, and read it as the curves of one or several runs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.errors import LogUnreadable
from holdfast.logs.csv_file import looks_like_table, read_table
from holdfast.logs.json_file import read_lines, read_list, read_trainer_state
from holdfast.logs.rows import curves_of
from holdfast.logs.text_file import read_text
from holdfast.signals.curves import Curves

_LARGEST_JSON = 512 << 20
SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".txt", ".log", ".out")


def open_log(path: Path, *, name: str | None = None) -> list[Curves]:
    """The runs in a file. Raises LogUnreadable, in words, if it holds none."""
    name = name or path.name
    head = _head(path)
    if not head.strip():
        raise LogUnreadable(f"{path} is empty.", fix="name a log that something was written to")
    if b"\0" in head[:4096] and not head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise LogUnreadable(f"{path} is a binary file, not a log.", fix="name a CSV, JSON or text log")
    text = head.decode("utf-8", "replace")
    start = text.lstrip("\ufeff \n\r\t")[:1]
    found = _from_json(path, name, start) if start in ("{", "[") else []
    if not found:
        lines = text.splitlines()[:-1] or text.splitlines()
        if looks_like_table(lines):
            found = curves_of(read_table(_lines(path)), name=name, source="csv")
        else:
            found = curves_of(read_text(_lines(path)), name=name, source="text")
    found = [curves for curves in found if curves.points]
    if not found:
        raise LogUnreadable(f"{path} holds no loss or metric.", fix="a loss reads `loss: 0.12`, or is a column named so")
    return found


def _from_json(path: Path, name: str, start: str) -> list[Curves]:
    whole = _whole_json(path)
    if isinstance(whole, dict) and isinstance(whole.get("log_history"), list):
        planned = whole.get("max_steps")
        rows = read_trainer_state(whole)
        return curves_of(rows, name=name, source="hf", planned_steps=planned if isinstance(planned, int) else None)
    if isinstance(whole, (dict, list)) and whole:
        return curves_of(read_list(whole), name=name, source="json")
    return curves_of(read_lines(_lines(path)), name=name, source="jsonl") if start == "{" else []


def _whole_json(path: Path) -> Any:
    if path.stat().st_size > _LARGEST_JSON:
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError):
        return None


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(1 << 16)
    except OSError as error:
        raise LogUnreadable(f"{path} cannot be read: {error.strerror}.", fix="see who may read it") from error


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file of any size; a line without an end is cut into pieces."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        while piece := file.readline(1 << 16):
            yield from itertools.chain(piece.rstrip("\n").split("\n"))
