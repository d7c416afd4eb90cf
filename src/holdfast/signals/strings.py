"""Names as numbers: a rank's dictionary of strings, one JSON string a line, the line's number is the code.

The line is on disk before the row that points to it is published, so a reader that loads the dictionary after the
rows finds every code.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.signals.schema import MISSING_INT

FILE_NAME = "strings.jsonl"
_AT_MOST = 200_000
_TOO_MANY = "(too many names)"


class StringWriter:
    """Give each string a code, and keep the dictionary file in step. A full disk gives the code for missing.

    Threads may share it: module hooks run in autograd's threads too. Only a string's first time takes the lock.
    """

    def __init__(self, folder: Path, *, on_trouble: Callable[[str, OSError], None]) -> None:
        self._path = folder / FILE_NAME
        self._codes: dict[str, int] = {}
        self._on_trouble = on_trouble
        self._adding = threading.Lock()

    def code(self, text: str) -> int:
        """The string's code; writes it down the first time."""
        code = self._codes.get(text)
        if code is not None:
            return code
        return self.codes([text])[0]

    def codes(self, texts: Sequence[str]) -> list[int]:
        """The codes of many strings; the new ones are written down together."""
        with self._adding:
            if any(text not in self._codes for text in texts):  # another thread may have been quicker
                if len(self._codes) + len(texts) > _AT_MOST:
                    texts = [text if text in self._codes else _TOO_MANY for text in texts]
                self._add([text for text in dict.fromkeys(texts) if text not in self._codes])
            return [self._codes.get(text, MISSING_INT) for text in texts]

    def _add(self, texts: list[str]) -> None:
        try:
            self._append(texts)
        except OSError as error:
            self._on_trouble("the dictionary of names", error)
        else:
            self._codes.update(zip(texts, range(len(self._codes), len(self._codes) + len(texts)), strict=True))

    def _append(self, texts: list[str]) -> None:
        line = "".join(json.dumps(text) + "\n" for text in texts).encode()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            if os.write(descriptor, line) != len(line):
                os.ftruncate(descriptor, size)
                raise OSError("short write")
        finally:
            os.close(descriptor)


def read_strings(folder: Path) -> list[str]:
    """The dictionary of a rank, in the order of the codes; a torn last line is skipped."""
    try:
        lines = (folder / FILE_NAME).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    strings = []
    for line in lines[:-1]:
        try:
            strings.append(str(json.loads(line)))
        except ValueError:
            strings.append("(unreadable)")
    return strings
