"""Passages of text and of token ids, chosen and ready to be drawn."""

from __future__ import annotations

import random
import re
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from holdfast.data.formats.text import TextSet, Tokenizer, ids, is_ids, lines
from holdfast.data.problem import Problem, Report
from holdfast.data.text_checks import LONG
from holdfast.data.visualize.pictures import Tile, words_instead
from holdfast.data.visualize.sample import Group, Mark, Sample, Suspects, Wish, chosen, kind_words

# A passage of text with its tokens in colours; those that a tokenizer or a model does not know are marked.

Token = tuple[str, str]  # text, and its kind: "" (between tokens), known, unknown, or shared (with another split)


def tokens_of(text: str, tokenizer: Tokenizer | None, limit: int | None) -> tuple[Token, ...]:
    """The text in tokens. Without a tokenizer only characters that are no valid UTF-8 are marked."""
    if tokenizer is None:
        return tuple((part, "unknown" if part == "\ufffd" else "") for part in re.split("(\ufffd)", text) if part)
    made: list[Token] = []
    place = 0
    for number, start, end in tokenizer.pieces(text):
        if start > place:
            made.append((text[place:start], ""))
        start = max(start, place)  # several tokens may share a character
        unknown = number == tokenizer.unknown or number < 0 or (limit is not None and number >= limit)
        if end > start:
            made.append((text[start:end], "unknown" if unknown or "\ufffd" in text[start:end] else "known"))
        place = max(place, end)
    return (*made, (text[place:], "")) if place < len(text) else tuple(made)


def with_lines(tokens: Sequence[Token], text: str, lines: Sequence[str]) -> tuple[Token, ...]:
    """Mark the tokens of some lines of the text, unless they are marked already."""
    places = [(start, start + len(line)) for line in lines if (start := text.find(line)) >= 0]
    made, place = [], 0
    for words, kind in tokens:
        inside = any(start <= place < end for start, end in places)
        made.append((words, "shared" if inside and kind != "unknown" else kind))
        place += len(words)
    return tuple(made)


_LINES, _LETTERS, _IDS = 12, 420, 96
_OF_TOKENS = frozenset({"unknown-tokens", "token-out-of-range"})


class Passage(NamedTuple):
    """Some lines of a file, or some ids; `line` is the first line, or the place of the first id."""

    split: str
    file: str
    line: int
    text: str
    numbers: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Where it stands."""
        return f"{self.file} {'id' if self.numbers else 'line'} {self.line:,}"

    def long_lines(self) -> list[str]:
        """Lines that are no chance to meet twice."""
        return [line.strip() for line in self.text.split("\n") if len(line.strip()) >= LONG]


def passages(data: TextSet, limit: int | None) -> Iterator[Passage]:
    """All of a set in pieces of a tile's size."""
    for split, file in data.files:
        yield from _of_ids(data, split, file, limit) if is_ids(file) else _of_lines(data, split, file)


def _of_lines(data: TextSet, split: str, file: str) -> Iterator[Passage]:
    kept: list[str] = []
    first = 1
    for number, line in enumerate(lines(data.root / file), 1):
        if kept and (len(kept) >= _LINES or sum(map(len, kept)) + len(line) > _LETTERS):
            yield Passage(split, file, first, "".join(kept))
            kept, first = [], number
        for start in range(0, max(len(line) - _LETTERS, 0), _LETTERS):
            yield Passage(split, file, number, line[start : start + _LETTERS])
        kept.append(line[(len(line) - 1) // _LETTERS * _LETTERS :] if len(line) > _LETTERS else line)
    if kept:
        yield Passage(split, file, first, "".join(kept))


def _of_ids(data: TextSet, split: str, file: str, limit: int | None) -> Iterator[Passage]:
    before = 0
    for some in ids(data.root / file, limit):
        for start in range(0, len(some), _IDS):
            yield Passage(split, file, before + start, "", tuple(some[start : start + _IDS].tolist()))
        before += len(some)


class TextSamples:
    """What is drawn of a text."""

    def __init__(self, data: TextSet, report: Report, wish: Wish) -> None:
        self._data, self._wish = data, wish
        self._names = data.tokenizer.names if data.tokenizer else {}
        self._problems = [problem for problem in report.problems if wish.wants(problem)]
        self._all_problems = report.problems
        self._limit = data.limit
        self._found: list[list[tuple[float, Passage]]] = [[] for _ in self._problems]
        self._rest: dict[tuple[str, ...], list[tuple[float, Passage]]] = {}
        leaks = any(problem.code == "split-leak" for problem in self._problems)
        self._twice = _lines_in_two_splits(data, self._limit) if leaks else {}
        self._beside: dict[Passage, Passage] = {}

    def groups(self) -> list[Group]:
        """The passages; those with a line in common side by side."""
        chance = random.Random(self._wish.seed)
        for passage in passages(self._data, self._limit):
            key = chance.random()
            self._keep(self._rest.setdefault(("", passage.split), []), key, passage)
            tokens: tuple[Token, ...] | None = None
            for place, problem in enumerate(self._problems):
                if passage.file in problem.files:
                    tokens = tokens if tokens is not None or problem.code not in _OF_TOKENS else self._tokens(passage)
                    if self._shows(passage, problem, tokens or ()):
                        self._keep(self._found[place], key, passage)
        suspects = [
            Suspects(problem.code, problem.severity, [self._unit(problem.code, passage) for _, passage in sorted(found)])
            for problem, found in zip(self._problems, self._found, strict=True)
            if found
        ]
        empty = [
            Sample(
                file, "", partial(words_instead, "an empty file", file),
                marks=[Mark(problem.code, problem.severity, kind_words(problem))],
            )
            for problem in self._problems
            for file in (problem.files if problem.code == "text-empty" else ())
        ]  # fmt: skip
        rest = {bucket: [passage for _, passage in sorted(some)] for bucket, some in self._rest.items()}
        only = bool(self._wish.findings) and bool(suspects or empty)
        units = chosen(suspects, rest, self._wish.samples - len(empty), self._wish.seed, only_suspects=only)
        return [*([one] for one in empty), *([self._sample(one) for one in unit] for unit in units)]

    def _keep(self, kept: list[tuple[float, Passage]], key: float, passage: Passage) -> None:
        kept.append((key, passage))
        if len(kept) > 4 * self._wish.samples:
            kept.sort()
            del kept[self._wish.samples :]

    def _shows(self, passage: Passage, problem: Problem, tokens: tuple[Token, ...]) -> bool:
        """Whether a problem of the file can be seen in this passage."""
        if problem.code in _OF_TOKENS:
            return any(kind == "unknown" for _, kind in tokens)
        if problem.code == "text-encoding":
            return "\ufffd" in passage.text
        if problem.code == "split-leak":
            other = next((self._twice[line] for line in passage.long_lines() if line in self._twice), None)
            if other is not None and other.split != passage.split:
                self._beside[passage] = other
                self._beside.setdefault(other, passage)
                return True
        return False

    def _unit(self, code: str, passage: Passage) -> tuple[Hashable, ...]:
        return (self._beside[passage], passage) if code == "split-leak" and passage in self._beside else (passage,)

    def _tokens(self, passage: Passage) -> tuple[Token, ...]:
        if not passage.numbers:
            return tokens_of(passage.text, self._data.tokenizer, self._limit)
        made: list[Token] = []
        for number in passage.numbers:
            beyond = self._limit is not None and number >= self._limit
            made += [
                (str(number) if beyond else self._names.get(number, str(number)), "unknown" if beyond else "known"),
                (" ", ""),
            ]
        return tuple(made)

    def _sample(self, passage: Hashable) -> Sample:
        assert isinstance(passage, Passage)
        tokens = self._tokens(passage)
        shared = [line for line in passage.long_lines() if line in self._twice]
        marks = [
            Mark(problem.code, problem.severity, self._words(problem, passage, tokens))
            for problem in self._all_problems
            if passage.file in problem.files
            and (self._shows(passage, problem, tokens) or (problem.code == "split-leak" and passage in self._beside))
        ]
        count = sum(bool(kind) for _, kind in tokens)
        said = f"{count:,} tokens" if self._data.tokenizer or passage.numbers else f"{len(passage.text):,} characters"
        shown = with_lines(tokens, passage.text, shared) if shared else tokens
        return Sample(passage.name, passage.split, partial(Tile, tokens=shown), said=said, marks=marks)

    def _words(self, problem: Problem, passage: Passage, tokens: tuple[Token, ...]) -> str:
        if problem.code in _OF_TOKENS or problem.code == "text-encoding":
            odd = list(dict.fromkeys(words.strip() for words, kind in tokens if kind == "unknown" and words.strip()))
            return f"{kind_words(problem)}: {' '.join(odd[:5])}" + (" …" if len(odd) > 5 else "")
        if problem.code == "split-leak" and passage in self._beside:
            return f"has a line of {self._beside[passage].name} ({self._beside[passage].split})"
        return kind_words(problem)


def _lines_in_two_splits(data: TextSet, limit: int | None) -> dict[str, Passage]:
    """Long lines that are in more than one split, with the first passage that has them."""
    first: dict[str, Passage] = {}
    twice: dict[str, Passage] = {}
    for passage in passages(data, limit):
        for line in passage.long_lines():
            before = first.setdefault(line, passage)
            if before.split != passage.split:
                twice.setdefault(line, before)
    return twice
