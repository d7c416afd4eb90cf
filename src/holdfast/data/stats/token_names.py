"""What the ids of a tokenizer stand for, read from its file: the reverse of its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast.data.listing import read_text

_LARGEST = 256 << 20
_BLANKS = str.maketrans({"Ġ": "␣", "▁": "␣", "Ċ": "⏎"})  # how byte-level and sentence pieces write a blank and a new line


def token_names(path: Path | None) -> dict[int, str]:
    """Id to token; empty where the file does not tell."""
    if path is None:
        return {}
    try:
        text = read_text(path, limit=_LARGEST)
        content: Any = json.loads(text) if path.suffix.lower() == ".json" else None
    except (OSError, ValueError, RecursionError):
        return {}
    if content is None:
        return {number: line.rstrip("\r") or " " for number, line in enumerate(line for line in text.split("\n") if line)}
    if not isinstance(content, dict):
        return {}
    if "model" not in content:
        return _reversed(content)
    model = content["model"] if isinstance(content["model"], dict) else {}
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, list):  # unigram: pairs of a token and its weight
        vocabulary = {str(pair[0]): number for number, pair in enumerate(vocabulary) if isinstance(pair, list) and pair}
    names = _reversed(vocabulary) if isinstance(vocabulary, dict) else {}
    return {number: token.translate(_BLANKS) for number, token in names.items()}


def _reversed(table: dict[str, Any]) -> dict[int, str]:
    return {number: str(token) for token, number in table.items() if isinstance(number, int)}
