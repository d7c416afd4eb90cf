"""A notebook whose outputs hold the log: what its cells printed, and the tables that the Hugging Face Trainer draws into it."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from typing import Any

_ROW = re.compile(r"<tr[^>]*>(.*?)</tr>", re.IGNORECASE | re.DOTALL)
_CELL = re.compile(r"<t[hd][^>]*>(.*?)</t[hd]>", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<[^>]+>")


def is_notebook(whole: object) -> bool:
    """Whether a JSON file is a notebook."""
    return isinstance(whole, Mapping) and isinstance(whole.get("cells"), list) and "nbformat" in whole


def cells_of(whole: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """What each cell put out: (`table`, lines of CSV) or (`text`, lines)."""
    for cell in whole["cells"]:
        outputs = cell.get("outputs") if isinstance(cell, Mapping) else None
        printed: list[str] = []
        for output in outputs or ():
            data = output.get("data") or {}
            table = list(_table(_joined(data.get("text/html")))) if "text/html" in data else []
            if len(table) > 2:
                yield "table", table
            else:
                printed += re.split(r"[\r\n]", _joined(output.get("text") or data.get("text/plain")))
        if any(line.strip() for line in printed):
            yield "text", printed


def _joined(text: Any) -> str:
    return "".join(map(str, text)) if isinstance(text, list) else str(text or "")


def _table(text: str) -> Iterator[str]:
    for row in _ROW.findall(text):
        cells = [html.unescape(_TAG.sub("", cell)).strip() for cell in _CELL.findall(row)]
        if cells:
            yield "\t".join(cells)
