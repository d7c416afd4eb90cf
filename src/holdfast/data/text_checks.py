"""Text as a whole: every line goes through the tokenizer once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.data.formats.text import TextSet, ids, is_ids, lines
from holdfast.data.listing import order_of
from holdfast.data.problem import Kind, Problem, problem
from holdfast.data.scan import Progress

# Token ids beyond the vocabulary, tokens that the tokenizer does not know, and a vocabulary that does not fit the model.

RANGE = Kind(
    "token-out-of-range", "critical", "token ids beyond the embedding: {count}",
    "use the tokenizer that the ids were made with, or resize the embedding: on a GPU this is a device-side assert",
)  # fmt: skip
UNKNOWN = Kind(
    "unknown-tokens",
    "warning",
    "tokens that the tokenizer does not know: {count}",
    "train the tokenizer on this text, or use one with byte fall-back",
)
TOO_SMALL = Kind(
    "vocabulary-mismatch", "critical", "the tokenizer has more tokens than the model has embedding rows",
    "call model.resize_token_embeddings(len(tokenizer)), or use the tokenizer that belongs to the model",
)  # fmt: skip
OTHER = Kind(
    "vocabulary-mismatch", "warning", "the model has far more embedding rows than the tokenizer has tokens",
    "look whether the tokenizer belongs to this model",
)  # fmt: skip
ENCODING = Kind(
    "text-encoding",
    "warning",
    "characters that are no valid UTF-8: {count}",
    "convert the text to UTF-8, or read it with its own encoding",
)
EMPTY = Kind("text-empty", "critical", "texts that are empty: {count}", "copy them again")
REPEATED = Kind(
    "split-leak",
    "warning",
    "long lines of one split that are in another one too: {count}",
    "split by document, and remove what is repeated",
)
KINDS = (RANGE, UNKNOWN, TOO_SMALL, OTHER, ENCODING, EMPTY, REPEATED)

_UNKNOWN_SHARE = 0.01
_FAR_LARGER, _ROUNDED = 1.25, 512  # embeddings are rounded up to multiples of 64 to 512


def vocabulary_problems(vocabulary: int, rows: int | None, file: str) -> Iterator[Problem]:
    """Compare the tokenizer with the model."""
    if rows is None:
        return
    example = f"{file}: {vocabulary:,} tokens, {rows:,} embedding rows"
    if vocabulary > rows:
        yield problem(TOO_SMALL, count=vocabulary - rows, files=[file], example=example)
    elif rows > max(_FAR_LARGER * vocabulary, vocabulary + _ROUNDED):
        yield problem(OTHER, count=rows - vocabulary, files=[file], example=example)


def token_problems(file: str, tokens: int, unknown: int, example: str) -> Iterator[Problem]:
    """Judge how much of a text the tokenizer does not know."""
    if tokens and unknown > _UNKNOWN_SHARE * tokens:
        said = f"{file}: {unknown / tokens:.1%} of {tokens:,} tokens" + (f", e.g. {example!r}" if example else "")
        yield problem(UNKNOWN, count=unknown, files=[file], example=said, share=unknown / tokens)


def range_problems(file: str, beyond: int, largest: int, limit: int) -> Iterator[Problem]:
    """Judge the ids against what the model knows."""
    if beyond:
        yield problem(
            RANGE,
            count=beyond,
            files=[file],
            example=f"{file}: id {largest:,}, the limit is {limit:,}",
            largest=largest,
            limit=limit,
        )


_LONG = 40  # characters of a line that is no chance to meet twice
_MOST_LINES = 5_000_000
_SHARE, _LEAST = 0.01, 5  # of the long lines of a split that are in another one


@dataclass(slots=True)
class _Text:
    """What was counted in one file."""

    file: str
    tokens: int = 0
    unknown: int = 0
    unknown_word: str = ""
    beyond: int = 0
    largest: int = -1
    invalid: int = 0
    size: int = 0
    long_lines: set[bytes] = field(default_factory=set)


class TextGathering:
    """Reads the texts of a set."""

    def __init__(self, data: TextSet) -> None:
        self._data = data
        self._texts: dict[str, list[_Text]] = {}
        size = data.tokenizer.size if data.tokenizer else None
        known = [one for one in (data.embedding_rows, size) if one is not None]
        self._limit = (data.embedding_rows or size) if known else None

    def read(self, progress: Progress | None) -> None:
        """Read everything; progress is in bytes."""
        total = sum(self._data.listing.files[file].size for _, file in self._data.files)
        done = 0
        for split, file in self._data.files:
            text = _Text(file)
            self._texts.setdefault(split, []).append(text)
            for size in self._read_ids(text) if is_ids(file) else self._read_text(text):
                done += size
                if progress:
                    progress(done, total)

    def _read_text(self, text: _Text) -> Iterator[int]:
        for line in lines(self._data.root / text.file):
            text.size += len(line)
            text.invalid += line.count("�")
            stripped = line.strip()
            if len(stripped) >= _LONG and len(text.long_lines) < _MOST_LINES:
                text.long_lines.add(hashlib.blake2b(stripped.encode(), digest_size=8).digest())
            if self._data.tokenizer:
                self._count(text, line)
            yield len(line)

    def _count(self, text: _Text, line: str) -> None:
        tokenizer = self._data.tokenizer
        assert tokenizer is not None
        found = tokenizer.encode(line)
        text.tokens += len(found)
        if tokenizer.unknown is not None:
            unknown = found.count(tokenizer.unknown)
            text.unknown += unknown
            if unknown and not text.unknown_word:
                text.unknown_word = line.strip()[:40]
        if self._limit is not None and found and max(found) >= self._limit:
            text.beyond += sum(one >= self._limit for one in found)
            text.largest = max(text.largest, *found)

    def _read_ids(self, text: _Text) -> Iterator[int]:
        for some in ids(self._data.root / text.file, self._limit):
            text.size += len(some)
            text.tokens += len(some)
            if self._limit is not None:
                text.beyond += int((some >= self._limit).sum())
                text.largest = max(text.largest, int(some.max(initial=-1)))
            yield some.nbytes // 4

    @property
    def splits(self) -> dict[str, int]:
        """Tokens of each split; characters where there is no tokenizer."""
        return {
            split: sum(text.tokens or text.size for text in self._texts[split]) for split in sorted(self._texts, key=order_of)
        }

    def problems(self) -> Iterator[Problem]:
        """Everything that is wrong."""
        if self._data.tokenizer:
            yield from vocabulary_problems(self._data.tokenizer.size, self._data.embedding_rows, self._data.tokenizer_file)
        texts = [text for some in self._texts.values() for text in some]
        empty = [text.file for text in texts if not text.size]
        if empty:
            yield problem(EMPTY, count=len(empty), files=empty, example=empty[0])
        for text in texts:
            yield from token_problems(text.file, text.tokens, text.unknown, text.unknown_word)
            yield from range_problems(text.file, text.beyond, text.largest, self._limit or 0)
            if text.invalid:
                yield problem(ENCODING, count=text.invalid, files=[text.file], example=text.file)
        yield from self._repeated()

    def _repeated(self) -> Iterator[Problem]:
        splits = sorted(self._texts, key=order_of)
        hashes = {split: set().union(*(text.long_lines for text in self._texts[split])) for split in splits}
        for place, one in enumerate(splits):
            for other in splits[place + 1 :]:
                both = hashes[one] & hashes[other]
                if len(both) >= max(_LEAST, _SHARE * len(hashes[other])):
                    files = [text.file for text in (*self._texts[one], *self._texts[other])]
                    example = f"{len(both):,} of {len(hashes[other]):,} long lines of {other} are in {one}"
                    yield problem(REPEATED, count=len(both), files=files, example=example)
