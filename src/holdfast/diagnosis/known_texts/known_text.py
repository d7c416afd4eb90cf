"""A known error text: how it is worded, what it means, what helps, and which page tells more.

Wordings are written as people see them. Numbers, paths and names that differ are a `*`; quotes and capitals do not matter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ERROR, FOLLOWS, WARNING, NOTE = 3, 2, 1, 0
KINDS = {
    ERROR: "error",  # it ends a run, and is where to begin
    FOLLOWS: "follows",  # it ends a run, but something else came first: another rank, another process, an earlier line
    WARNING: "warning",  # the run continues, and something is wrong
    NOTE: "note",  # the run continues, and it rarely matters
}
_QUOTES = "'\"`‘’“”"
_WHOLE_WORD = re.compile(rf"(?<![A-Za-z*])(?<![A-Za-z][{_QUOTES}])[A-Za-z]+(?![A-Za-z*]|[{_QUOTES}][A-Za-z])")
_ANYTHING = ".{0,300}?"
_PREFIX = r"^\s*(?:\[[^\]]{1,60}\]:?\s*){0,3}"  # of torchrun, of a logger


@dataclass(frozen=True, slots=True)
class Pattern:
    """A wording that needs a regular expression; `words` are plain words, one of which is on every line that it matches."""

    regex: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KnownText:
    """One error text in its wordings over the versions."""

    name: str
    wordings: tuple[str | Pattern, ...]
    page: str  # a code that has a page
    means: str
    fix: str
    kind: int = ERROR
    is_frame: bool = False  # its wordings are frames of a traceback: the error in which that ends is meant
    only_with: str = ""  # of a frame: the name of the known text that its error must be; else any error


@dataclass(frozen=True, slots=True)
class Wording:
    """One wording, ready to be looked for: by `pattern`, on lines that hold the `word` between characters that are no letters."""

    word: str
    pattern: re.Pattern[str]
    text: KnownText


def wordings(text: KnownText) -> list[Wording]:
    """All ways in which a text is looked for."""
    every = []
    for wording in text.wordings:
        words, regex = (
            (wording.words, wording.regex) if isinstance(wording, Pattern) else ((_longest_word(wording),), _regex(wording))
        )
        pattern = re.compile(regex, re.IGNORECASE)
        every += [Wording(word.lower(), pattern, text) for word in words]
    return every


def _regex(wording: str) -> str:
    """A wording as a regular expression. `^` and `$` at its ends tie it to the line's; a word is found only as a whole."""
    body = wording.removeprefix("^").removesuffix("$")
    middle = _ANYTHING.join("".join(map(_one, piece)) for piece in body.split("*"))
    before = _PREFIX if wording.startswith("^") else r"(?<!\w)" if body[0].isalnum() else ""
    after = r"\s*$" if wording.endswith("$") else r"(?!\w)" if body[-1].isalnum() else ""
    return f"{before}{middle}{after}"


def _one(character: str) -> str:
    if character.isspace():
        return r"\s+"
    return f"[{_QUOTES}]?" if character in _QUOTES else re.escape(character)


def _longest_word(wording: str) -> str:
    """Its longest word that is whole: what a log is searched for before anything costly is done."""
    words: list[str] = _WHOLE_WORD.findall(wording)
    return max(words, key=len)
