"""Tokenizers: Hugging Face's tokenizer.json, and vocabulary files with one token a line or as a JSON object."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.data.listing import read_text
from holdfast.errors import UsageError

_LARGEST = 256 << 20
_UNKNOWN = ("[UNK]", "<unk>", "<UNK>", "<|unk|>")
_WORDS = re.compile(r"\w+|[^\w\s]")
_LETTERS = re.compile(r".", re.DOTALL)


Piece = tuple[int, int, int]  # an id, and where in the text its token begins and ends


@dataclass(slots=True)
class Tokenizer:
    """Makes ids of text. `size` is one more than its largest id; `unknown` is the id of what it does not know.

    `pieces` makes the same ids with their places in the text, which takes longer.
    """

    encode: Callable[[str], list[int]]
    size: int
    unknown: int | None
    pieces: Callable[[str], list[Piece]]


def open_tokenizer(path: Path) -> Tokenizer:
    """Open a tokenizer file by what it holds."""
    try:
        if path.suffix.lower() != ".json":
            return _by_vocabulary([line for line in read_text(path, limit=_LARGEST).split("\n") if line])
        content = json.loads(read_text(path, limit=_LARGEST))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no tokenizer: {error}", fix="name a tokenizer.json or a vocabulary file") from None
    if isinstance(content, dict) and "model" in content:
        return _hugging_face(path, content)
    if isinstance(content, dict) and content and all(isinstance(value, int) for value in content.values()):
        return _from_table({str(word): number for word, number in content.items()})
    raise UsageError(f"{path} is neither a tokenizer.json nor a vocabulary", fix="name a tokenizer.json or a vocabulary file")


def _hugging_face(path: Path, content: dict[str, Any]) -> Tokenizer:
    try:
        from tokenizers import Tokenizer as Theirs
    except ImportError:
        raise UsageError("a tokenizer.json needs the package tokenizers", fix="pip install tokenizers") from None
    try:
        theirs = Theirs.from_str(json.dumps(content))
    except Exception as error:  # noqa: BLE001 - the package raises plain Exception
        raise UsageError(
            f"{path} cannot be read: {error}", fix="make it again with the version of tokenizers that is installed"
        ) from None
    vocabulary = theirs.get_vocab(with_added_tokens=True)
    word = content["model"].get("unk_token") if isinstance(content["model"], dict) else None
    unknown = vocabulary.get(word) if isinstance(word, str) else None
    size = max(vocabulary.values(), default=-1) + 1
    return Tokenizer(lambda text: list(_encoded(theirs, text).ids), size, unknown, lambda text: _placed(_encoded(theirs, text)))


def _encoded(theirs: Any, text: str) -> Any:
    return theirs.encode(text, add_special_tokens=False)


def _placed(encoding: Any) -> list[Piece]:
    return [(number, *place) for number, place in zip(encoding.ids, encoding.offsets, strict=True)]


def _by_vocabulary(lines: list[str]) -> Tokenizer:
    """One token a line; a line that is only a blank is the token for a blank."""
    return _from_table({line.rstrip("\r") or " ": number for number, line in enumerate(lines)})


def _from_table(table: dict[str, int]) -> Tokenizer:
    """Characters where every token is one (but those in brackets), words otherwise. Unknown ones get an id of their own: -1."""
    unknown = next((table[word] for word in _UNKNOWN if word in table), -1)
    plain = [word for word in table if word not in _UNKNOWN and not word.startswith(("[", "<"))]
    by_character = bool(plain) and all(len(word) == 1 for word in plain)

    def encode(text: str) -> list[int]:
        parts = text.replace("\n", "") if by_character and "\n" not in table else text
        words = parts if by_character else _WORDS.findall(parts)
        return [table.get(word, table.get(word.lower(), unknown)) for word in words]

    def pieces(text: str) -> list[Piece]:
        places = [found.span() for found in (_LETTERS if by_character else _WORDS).finditer(text)]
        if by_character and "\n" not in table:
            places = [place for place in places if text[place[0]] != "\n"]
        return [(encode(text[start:end])[0], start, end) for start, end in places]

    return Tokenizer(encode, max(table.values(), default=-1) + 1, unknown, pieces)
