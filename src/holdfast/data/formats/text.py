"""Plain text, and files of token ids, with the tokenizer that makes numbers of them."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.data.formats.splits import split_named
from holdfast.data.listing import Listing, read_text, suffix
from holdfast.data.tokenizers import Tokenizer, open_tokenizer
from holdfast.errors import UsageError

_TEXT = (".txt", ".text", ".md")
_IDS = (".bin",)
_TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt", "vocabulary.txt")
_NOT_TEXT = frozenset(
    {"vocab.txt", "vocabulary.txt", "classes.txt", "readme.txt", "license.txt", "readme.md", "license.md", "source.md"}
)
_BLOCK = 1 << 20


@dataclass(slots=True)
class TextSet:
    """Text files by split, and what reads them. `embedding_rows` is how many tokens the model knows."""

    root: Path
    listing: Listing
    files: list[tuple[str, str]]  # split and file
    tokenizer: Tokenizer | None = None
    tokenizer_file: str = ""
    embedding_rows: int | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def unit(self) -> str:
        """What is counted: tokens where there are any, otherwise characters, with those that end a line."""
        return "tokens" if self.tokenizer or all(is_ids(file) for _, file in self.files) else "characters"


def recognise(listing: Listing, named: str | None) -> float | None:
    """How sure it is that this is text."""
    if named:
        return 0.9 if suffix(named) in (*_TEXT, *_IDS) else None
    if listing.images():
        return None
    return 0.4 if _files(listing, None) else None


def _files(listing: Listing, named: str | None) -> list[str]:
    if named:
        return [named]
    found = listing.with_suffix(*_TEXT, *_IDS)
    return [path for path in found if path.rsplit("/", 1)[-1].lower() not in _NOT_TEXT]


def read(listing: Listing, named: str | None, tokenizer: Path | None = None, rows: int | None = None) -> TextSet:
    """The texts, with the tokenizer that was named or lies beside them."""
    files = [(split_named(file), file) for file in _files(listing, named)]
    if not files:
        raise UsageError(f"{listing.root} holds no text", fix="name a .txt file, or token ids in a .bin file")
    path = tokenizer or next((listing.root / name for name in _TOKENIZERS if (listing.root / name).is_file()), None)
    data = TextSet(listing.root, listing, files, embedding_rows=rows)
    if path is None:
        data.notes.append("no tokenizer was named or lies beside the text: --tokenizer FILE looks at tokens too")
        return data
    data.tokenizer, data.tokenizer_file = open_tokenizer(path), path.name
    data.embedding_rows = rows if rows is not None else _rows_of_model(path.parent)
    return data


def _rows_of_model(folder: Path) -> int | None:
    """The vocabulary's size that the model's config.json beside the tokenizer states."""
    try:
        settings = json.loads(read_text(folder / "config.json", limit=1 << 22))
    except (OSError, ValueError, RecursionError):
        return None
    inner = settings.get("text_config", settings) if isinstance(settings, dict) else {}
    rows: Any = inner.get("vocab_size") if isinstance(inner, dict) else None
    return rows if isinstance(rows, int) and rows > 0 else None


def is_ids(file: str) -> bool:
    """Whether a file holds token ids, not text."""
    return suffix(file) in _IDS


def lines(path: Path) -> Iterator[str]:
    """The lines of a text, one after the other, in bounded memory; a line of more than a megabyte comes in pieces."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a piece may end within a character
    with path.open("rb") as file:
        while content := file.readline(_BLOCK):
            yield decoder.decode(content, final=content.endswith(b"\n"))
    if rest := decoder.decode(b"", final=True):
        yield rest


def ids(path: Path, vocabulary: int | None) -> Iterator[npt.NDArray[np.int64]]:
    """Token ids in pieces; two bytes each where that is enough for the vocabulary, else four."""
    kind = np.dtype("<u2" if vocabulary is None or vocabulary <= 1 << 16 else "<u4")
    with path.open("rb") as file:
        while content := file.read(_BLOCK):
            yield np.frombuffer(content[: len(content) // kind.itemsize * kind.itemsize], kind).astype(np.int64)
