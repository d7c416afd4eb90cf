"""Plain text, and files of token ids, with the tokenizer that makes numbers of them."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.data.columns import Chunk, Column, Part, TableSet
from holdfast.data.listing import Listing, read_text, split_named, suffix
from holdfast.errors import UsageError

# Tokenizers: Hugging Face's tokenizer.json, and vocabulary files with one token a line or as a JSON object.

_LARGEST = 256 << 20
_UNKNOWN = ("[UNK]", "<unk>", "<UNK>", "<|unk|>")
_WORDS = re.compile(r"\w+|[^\w\s]")
_BLANKS = str.maketrans({"Ġ": "␣", "▁": "␣", "Ċ": "⏎"})  # how byte-level and sentence pieces write a blank and a new line


@dataclass(slots=True)
class Tokenizer:
    """Makes ids of text. `size` is one more than its largest id; `unknown` is the id of what it does not know."""

    encode: Callable[[str], list[int]]
    size: int
    unknown: int | None
    names: dict[int, str]  # the tokens of the ids


def open_tokenizer(path: Path) -> Tokenizer:
    """Open a tokenizer file by what it holds."""
    try:
        if path.suffix.lower() != ".json":
            lines = [line.rstrip("\r") or " " for line in read_text(path, limit=_LARGEST).split("\n") if line]  # " ": a blank
            return _from_table({line: number for number, line in enumerate(lines)})
        content = json.loads(read_text(path, limit=_LARGEST))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a tokenizer: {error}", fix="name a tokenizer.json or a vocabulary file") from None
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

    def encode(text: str) -> list[int]:
        return list(theirs.encode(text, add_special_tokens=False).ids)

    return Tokenizer(encode, size, unknown, {number: token.translate(_BLANKS) for token, number in vocabulary.items()})


def _from_table(table: dict[str, int]) -> Tokenizer:
    """Characters where every token is one (but those in brackets), words otherwise. Unknown ones get an id of their own: -1."""
    unknown = next((table[word] for word in _UNKNOWN if word in table), -1)
    plain = [word for word in table if word not in _UNKNOWN and not word.startswith(("[", "<"))]
    by_character = bool(plain) and all(len(word) == 1 for word in plain)

    def encode(text: str) -> list[int]:
        parts = text.replace("\n", "") if by_character and "\n" not in table else text
        tokens = parts if by_character else _WORDS.findall(parts)
        return [table.get(word, table.get(word.lower(), unknown)) for word in tokens]

    return Tokenizer(encode, max(table.values(), default=-1) + 1, unknown, {number: word for word, number in table.items()})


_TEXT = (".txt", ".text", ".md")
_IDS = (".bin",)
_TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt", "vocabulary.txt")
_NOT_TEXT = frozenset(
    {"vocab.txt", "vocabulary.txt", "classes.txt", "readme.txt", "license.txt", "readme.md", "license.md", "source.md"}
)
_BLOCK = 1 << 20
IDS_IN_A_ROW, _LINES = 64, 64  # of a chunk; a line may have a megabyte


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

    @property
    def limit(self) -> int | None:
        """Ids from here on are beyond what the model, or else the tokenizer, knows."""
        return self.embedding_rows or (self.tokenizer.size if self.tokenizer else None)


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
    files = listing.with_suffix(*_TEXT, *_IDS)
    return [path for path in files if path.rsplit("/", 1)[-1].lower() not in _NOT_TEXT]


def read(listing: Listing, named: str | None, tokenizer: Path | None = None, rows: int | None = None) -> TextSet:
    """The texts, with the tokenizer that was named or lies beside them."""
    files = [(split_named(file), file) for file in _files(listing, named)]
    if not files:
        raise UsageError(f"{listing.root} holds no text", fix="name a .txt file, or token ids in a .bin file")
    path = tokenizer or next((listing.root / name for name in _TOKENIZERS if (listing.root / name).is_file()), None)
    data = TextSet(listing.root, listing, files, embedding_rows=rows)
    if path is None:
        data.notes.append("no tokenizer was named or found beside the text: --tokenizer FILE checks tokens too")
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


def as_rows(data: TextSet) -> TableSet:
    """The lines, or pieces of 64 ids, as rows of a table."""
    return TableSet("text", data.root, [Part(split, file, partial(_rows, data, file)) for split, file in data.files])


def _rows(data: TextSet, file: str) -> Iterator[Chunk]:
    if is_ids(file):
        names = data.tokenizer.names if data.tokenizer else {}
        for some in ids(data.root / file, data.limit):
            tokens = [names.get(number, str(number)) for number in some.tolist()]
            pieces = (" ".join(tokens[start : start + IDS_IN_A_ROW]) for start in range(0, len(tokens), IDS_IN_A_ROW))
            yield {"tokens": Column(np.array(list(pieces), dtype=object))}
        return
    left = lines(data.root / file)
    while some_lines := list(islice(left, _LINES)):
        yield {"text": Column(np.array(some_lines, dtype=object))}
