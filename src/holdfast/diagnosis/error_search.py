"""Find known error texts in a log: the most telling one first. Any length of log, in bounded memory.

    search = ErrorSearch()
    for part in parts: search.feed(part)
    search.answer() -> Answer

What ends a run counts more than what follows from it, that more than a warning; of two alike the later one counts more.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import BinaryIO

from holdfast.diagnosis.known_texts import ERROR, FOLLOWS, KNOWN_TEXTS, KnownText, wordings
from holdfast.diagnosis.known_texts.known_text import Wording

_PART = 1 << 18  # bytes that are read at once
_LONGEST = 1 << 14  # characters of a line that are looked at, half from its beginning and half from its end
_MESSAGE = 12  # lines that the text of an error may have
_KEPT = 1000  # characters of a line that was found
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_RAISED = re.compile(
    r"^(?:\[[^\]]{1,60}\]:?\s*)?(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failed|Group)(?::|\s*$)"
)
_LETTERS = bytes(one if 97 <= one <= 122 else one + 32 if 65 <= one <= 90 else 32 for one in range(256))  # else a space
_TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True, slots=True)
class Match:
    """A known text in a log: its last line, the number of that line, and on how many lines it is."""

    text: KnownText
    line: str
    number: int
    times: int = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found, the most important first; and the last error, if it is none of them."""

    matches: tuple[Match, ...] = ()
    unknown: tuple[str, int] | None = None  # its text, and the number of its line
    lines: int = 0


@cache
def by_word() -> dict[bytes, list[tuple[int, Wording]]]:
    """Every wording of every known text with its place in their order, by the word that leads to it."""
    wordings_of: dict[bytes, list[tuple[int, Wording]]] = {}
    for place, text in enumerate(KNOWN_TEXTS):
        for wording in wordings(text):
            wordings_of.setdefault(wording.word.encode(), []).append((place, wording))
    return wordings_of


@dataclass(slots=True)
class ErrorSearch:
    """Takes a log in parts, and remembers the last line of each known text."""

    _matches: dict[str, Match] = field(default_factory=dict)
    _rest: str = ""
    _lines: int = 0
    _raised: tuple[str, int] | None = None  # the last error that nothing is known about so far
    _in_traceback: bool = False
    _explained: bool = False  # a line of the traceback is a known text
    _frame: KnownText | None = None  # what a frame of the traceback says of the error that it ends in

    def feed(self, part: str) -> None:
        """Look at one more part of the log; what stands after its last line end waits for the next."""
        block, end, rest = (self._rest + part).rpartition("\n")
        if end:
            self._look(block)
        self._rest = rest if len(rest) <= _LONGEST else rest[: _LONGEST // 2] + rest[-_LONGEST // 2 :]

    def answer(self) -> Answer:
        """What was found in all of it."""
        if self._rest:
            self._look(self._rest)
            self._rest = ""
        return Answer(tuple(_ranked(self._matches.values())), self._raised, self._lines)

    def _look(self, block: str) -> None:
        if "\x1b" in block:
            block = _ESCAPES.sub("", block)
        words = set(block.encode("ascii", "replace").translate(_LETTERS).split())
        wanted = [placed for word in words & by_word().keys() for placed in by_word()[word]]
        if not wanted and not self._in_traceback and b"traceback" not in words:
            self._lines += block.count("\n") + 1
            return
        in_order = [wording for _, wording in sorted(wanted, key=lambda placed: placed[0])]
        for line in block.split("\n"):
            self._lines += 1
            for piece in line.split("\r") if "\r" in line else (line,):
                self._look_at_line(piece, in_order)

    def _look_at_line(self, line: str, wanted: list[Wording]) -> None:
        if len(line) > _LONGEST:
            line = line[: _LONGEST // 2] + line[-_LONGEST // 2 :]
        raised = self._follow_traceback(line)
        low = line.lower()
        for wording in wanted:
            if wording.word in low and (match := wording.pattern.search(line)) is not None:
                if wording.text.is_frame:
                    self._frame = wording.text if self._in_traceback else None
                    return
                self._add(self._more_specific(wording.text) if raised else wording.text, _around(line, match))
                self._explained = self._in_traceback
                if raised or (self._raised is not None and self._lines - self._raised[1] < _MESSAGE):
                    self._raised = None
                return
        if raised and self._frame is not None and not self._frame.only_with:
            self._add(self._frame, _shortened(line))
        elif raised and not self._explained:
            self._raised = (_shortened(line), self._lines)

    def _more_specific(self, error: KnownText) -> KnownText:
        """What a frame of the traceback says of its error, where that tells more; else the error itself."""
        frame = self._frame
        if frame is not None and (frame.only_with == error.name if frame.only_with else error.kind < ERROR):
            return frame
        return error

    def _add(self, text: KnownText, line: str) -> None:
        times = self._matches[text.name].times + 1 if text.name in self._matches else 1
        self._matches[text.name] = Match(text, line, self._lines, times)

    def _follow_traceback(self, line: str) -> bool:
        """Whether the line is the error in which a traceback ends: the first that is not indented and names one."""
        if _TRACEBACK in line:
            self._in_traceback, self._explained, self._frame = True, False, None
        elif self._in_traceback and _RAISED.match(line):
            self._in_traceback = False
            return True
        return False


def search_text(text: str) -> Answer:
    """Look at a text that was pasted. Where its lines were wrapped on the way, it is looked at as one line, too."""
    search = ErrorSearch()
    search.feed(text)
    answer = search.answer()
    if answer.matches or "\n" not in text.strip():
        return answer
    joined = ErrorSearch()
    joined.feed(" ".join(text.split()))
    return Answer(joined.answer().matches, answer.unknown, answer.lines)


def search_file(file: BinaryIO) -> Answer:
    """Look at a log of any length, part by part."""
    search = ErrorSearch()
    for part in _decoded(file):
        search.feed(part)
    return search.answer()


def _decoded(file: BinaryIO) -> Iterator[str]:
    first = file.read(_PART)
    wide = first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # what PowerShell writes with `>`
    decoder = codecs.getincrementaldecoder("utf-16" if wide else "utf-8")("replace")
    part = first
    while part:
        yield decoder.decode(part)
        part = file.read(_PART)


def _ranked(matches: Iterable[Match]) -> Iterator[Match]:
    """The most important first, each page once."""
    pages: set[str] = set()
    for match in sorted(matches, key=lambda match: (-match.text.kind, -match.number)):
        if match.text.page not in pages:
            pages.add(match.text.page)
            yield match


def unknown_comes_first(answer: Answer) -> bool:
    """Whether the unknown error says more than what is known: nothing known ended the run."""
    return answer.unknown is not None and all(match.text.kind < FOLLOWS for match in answer.matches)


def _around(line: str, match: re.Match[str]) -> str:
    """The line, or the part of a long line in which the text stands."""
    if len(line) <= _KEPT:
        return _shortened(line)
    start = max(0, min(match.start() - 100, len(line) - _KEPT))
    return f"{'… ' if start else ''}{_shortened(line[start : start + _KEPT])}"


def _shortened(line: str) -> str:
    clean = " ".join("".join(one if one.isprintable() else " " for one in line).split())
    return clean if len(clean) <= _KEPT else f"{clean[:_KEPT]} …"
