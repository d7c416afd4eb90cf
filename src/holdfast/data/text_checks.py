"""Text as a whole: every line is read, and tokenized, once; what is counted there is judged, or shown as statistics."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from holdfast.data.formats.text import IDS_IN_A_ROW, TextSet, Tokenizer, ids, is_ids, lines
from holdfast.data.listing import order_of
from holdfast.data.problem import Fault, Problem, problem
from holdfast.data.scan import Progress

_UNKNOWN_SHARE = 0.01
_FAR_LARGER, _ROUNDED = 1.25, 512  # embeddings are rounded up to multiples of 64 to 512
_LONG = 40  # characters of a line that is no chance to meet twice
_MOST_LINES = 5_000_000
_SHARE, _LEAST = 0.01, 5  # of the long lines of a split that are in another one
_LARGEST_ID = 1 << 22  # above, ids are counted as one
_MOST_CASES = 1000  # lines with one kind of fault that are named
Place = tuple[str, int]  # a file, and its line or piece of ids, counted from 0


@dataclass(slots=True)
class _Text:
    """What was counted in one file."""

    split: str
    file: str
    tokens: int = 0
    unknown: int = 0
    beyond: int = 0
    largest: int = -1
    invalid: int = 0
    size: int = 0
    long_lines: set[bytes] = field(default_factory=set)
    cases: dict[str, list[tuple[int, str]]] = field(default_factory=dict)  # by kind: lines, with what is wrong there

    def tell(self, kind: str, row: int, message: str) -> None:
        """Remember a line where something is wrong."""
        self.cases.setdefault(kind, []).append((row, message))

    def wants(self, kind: str) -> bool:
        """Whether there is room for another one."""
        return len(self.cases.get(kind, ())) < _MOST_CASES

    def problem(self, kind: str, count: int, example: str, **evidence: Any) -> Problem:
        """All faults of one kind in this file."""
        lines = self.cases[kind]
        cases, shown = [f"{self.file}:{row + 1}: {message}" for row, message in lines], [[(self.file, row)] for row, _ in lines]
        return problem(kind, count=count, files=[self.file], example=example, cases=cases, shown=shown, **evidence)


class TextCounts:
    """Reads the texts of a set; progress is in bytes. With `frequencies`, tokens or characters are counted, too.

    `often` counts ids where there is a tokenizer or files of ids, and characters otherwise.
    """

    def __init__(self, data: TextSet, progress: Progress | None, *, frequencies: bool = False) -> None:
        self.data, self._frequencies = data, frequencies
        self.texts = [_Text(split, file) for split, file in data.files]
        self.often: dict[str, Counter[int]] = {text.split: Counter() for text in self.texts}
        self.lengths: dict[str, Counter[int]] = {text.split: Counter() for text in self.texts}
        self.faults: list[Fault] = []
        self._limit = data.limit
        total, done = sum(data.listing.files[text.file].size for text in self.texts), 0
        for text in self.texts:
            try:
                for size in self._read_ids(text) if is_ids(text.file) else self._read_text(text):
                    done += size
                    if progress:
                        progress(min(done, total), total)
            except OSError as error:
                self.faults.append(Fault("table-unreadable", text.file, 0, error.strerror or str(error)))

    def _read_text(self, text: _Text) -> Iterator[int]:
        often, lengths = self.often[text.split], self.lengths[text.split]
        for row, line in enumerate(lines(self.data.root / text.file)):
            text.size += len(line)
            if invalid := line.count("\ufffd"):
                text.invalid += invalid
                if text.wants("text-encoding"):
                    text.tell("text-encoding", row, line.strip()[:80])
            if (key := _known_by(line)) and len(text.long_lines) < _MOST_LINES:
                text.long_lines.add(key)
            tokens = self._tokens(text, row, line, self.data.tokenizer) if self.data.tokenizer else None
            if self._frequencies:
                often.update(tokens if tokens is not None else map(ord, line))
                lengths[len(tokens) if tokens is not None else len(line.rstrip("\r\n"))] += 1
            yield len(line.encode("utf-8", errors="replace")) if not line.isascii() else len(line)

    def _tokens(self, text: _Text, row: int, line: str, tokenizer: Tokenizer) -> list[int]:
        tokens = tokenizer.encode(line)
        text.tokens += len(tokens)
        if tokenizer.unknown is not None and (unknown := tokens.count(tokenizer.unknown)):
            text.unknown += unknown
            if text.wants("unknown-tokens"):
                words = [word for word in dict.fromkeys(line.split()) if tokenizer.unknown in tokenizer.encode(word)]
                text.tell("unknown-tokens", row, " ".join(words[:5])[:80] or line.strip()[:40])
        if self._limit is not None and tokens and max(tokens) >= self._limit:
            text.beyond += sum(token >= self._limit for token in tokens)
            text.largest = max(text.largest, *tokens)
            if text.wants("token-out-of-range"):
                text.tell("token-out-of-range", row, f"id {max(tokens):,}")
        return tokens

    def _read_ids(self, text: _Text) -> Iterator[int]:
        for some in ids(self.data.root / text.file, self._limit):
            text.size += len(some)
            text.tokens += len(some)
            if self._limit is not None:
                beyond = np.flatnonzero(some >= self._limit)
                text.largest = max(text.largest, int(some.max(initial=-1)))
                for place in beyond[: _MOST_CASES if text.wants("token-out-of-range") else 0].tolist():
                    at = text.size - len(some) + place
                    text.tell("token-out-of-range", at // IDS_IN_A_ROW, f"id {some[place]:,}, the {at + 1:,}th of the file")
                text.beyond += len(beyond)
            if self._frequencies:
                values, counts = np.unique(np.minimum(some, _LARGEST_ID), return_counts=True)
                self.often[text.split].update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
            yield some.nbytes // (4 if self._limit is None or self._limit <= 1 << 16 else 2)

    @property
    def splits(self) -> dict[str, int]:
        """Tokens of each split; characters where there is no tokenizer."""
        return {
            split: sum(
                text.tokens if self.data.tokenizer else text.tokens or text.size for text in self.texts if text.split == split
            )
            for split in sorted(self.often, key=order_of)
        }

    def problems(self) -> Iterator[Problem]:
        """Everything that is wrong."""
        if self.data.tokenizer and self.data.embedding_rows is not None:
            yield from self._against_the_model(self.data.tokenizer.size, self.data.embedding_rows, self.data.tokenizer_file)
        empty = [text.file for text in self.texts if not text.size]
        if empty:
            yield problem("text-empty", count=len(empty), files=empty, example=empty[0])
        for text in self.texts:
            if text.unknown > _UNKNOWN_SHARE * text.tokens:
                share, word = text.unknown / text.tokens, text.cases["unknown-tokens"][0][1]
                example = f"{text.file}: {share:.1%} of {text.tokens:,} tokens, e.g. {word!r}"
                yield text.problem("unknown-tokens", text.unknown, example, share=share)
            if text.beyond:
                example = f"{text.file}: id {text.largest:,}, the limit is {self._limit:,}"
                yield text.problem("token-out-of-range", text.beyond, example, largest=text.largest, limit=self._limit)
            if text.invalid:
                yield text.problem("text-encoding", text.invalid, text.file)
        yield from self._repeated()

    def _against_the_model(self, vocabulary: int, rows: int, file: str) -> Iterator[Problem]:
        example = f"{file}: {vocabulary:,} tokens, {rows:,} embedding rows"
        if vocabulary > rows:
            yield problem("vocabulary-mismatch", count=vocabulary - rows, files=[file], example=example)
        elif rows > max(_FAR_LARGER * vocabulary, vocabulary + _ROUNDED):
            yield problem("vocabulary-mismatch too many rows", count=rows - vocabulary, files=[file], example=example)

    def _repeated(self) -> Iterator[Problem]:
        splits = sorted(self.often, key=order_of)
        texts = {split: [text for text in self.texts if text.split == split] for split in splits}
        hashes = {split: set().union(*(text.long_lines for text in texts[split])) for split in splits}
        for place, earlier in enumerate(splits):
            for other in splits[place + 1 :]:
                both = hashes[earlier] & hashes[other]
                if len(both) >= max(_LEAST, _SHARE * len(hashes[other])):
                    files = [text.file for text in (*texts[earlier], *texts[other])]
                    example = f"{len(both):,} of {len(hashes[other]):,} long lines of {other} are in {earlier}"
                    first, second = (self._places(texts[split], both) for split in (earlier, other))
                    shown = [[first[line], second[line]] for line in second if line in first][:_MOST_CASES]
                    cases = [f"{file}:{row + 1} matches {before}:{at + 1}" for (before, at), (file, row) in shown]
                    yield problem("split-leak lines", count=len(both), files=files, example=example, cases=cases, shown=shown)

    def _places(self, texts: list[_Text], wanted: set[bytes]) -> dict[bytes, Place]:
        """Where some long lines stand: the texts are read once more."""
        places: dict[bytes, Place] = {}
        for text in texts:
            for row, line in enumerate(lines(self.data.root / text.file) if text.long_lines else ()):
                if (key := _known_by(line)) in wanted:
                    places.setdefault(key, (text.file, row))
        return places


def _known_by(line: str) -> bytes:
    """What a long line is recognised by; empty for a short one."""
    stripped = line.strip()
    return hashlib.blake2b(stripped.encode(), digest_size=8).digest() if len(stripped) >= _LONG else b""
