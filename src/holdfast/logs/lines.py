"""The lines of a text file of any size, in whatever way it is written down: compressed, UTF-16, with odd bytes, half-written."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from holdfast.errors import LogUnreadable

HEAD = 1 << 16
_LONGEST_LINE = 1 << 16
_COMPRESSED: dict[bytes, Callable[[Path], object]] = {
    b"\x1f\x8b": gzip.GzipFile,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ": lzma.LZMAFile,
}
_BOMS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError)  # a compressed file that ends too early, or is none
_LAST_NUMBER = re.compile(r"(?<![\w.])[-+]?\.?\d[\w.+-]*$")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")


def head_of(path: Path) -> bytes:
    """The first bytes of a file, unpacked."""
    try:
        with _opened(path) as file:
            return file.read(HEAD)
    except _BROKEN as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise LogUnreadable(
            f"{path} cannot be read: {reason}.", fix="check its permissions, and whether it is complete"
        ) from error


def encoding_of(head: bytes) -> str | None:
    """How the text is written; None for bytes that are no text."""
    for mark, encoding in _BOMS.items():
        if head.startswith(mark):
            return encoding
    some = head[:4096]
    if b"\0" not in some:
        return "utf-8"
    even, odd = some[::2].count(0), some[1::2].count(0)
    if min(even, odd) == 0 and max(even, odd) * 4 > len(some):  # UTF-16 without its mark: every other byte is zero
        return "utf-16-be" if even else "utf-16-le"
    return None


def lines_of(path: Path) -> Iterator[str]:
    """One line after the other, without colours; a line without an end is cut into pieces.

    A number at the end of a last line that has no end may be half a number: one shorter than that of the line before is cut off.
    """
    encoding = encoding_of(head_of(path)) or "utf-8"
    before, held, ended = "", None, True
    for piece in _pieces(path, encoding):
        if held is not None:
            yield held
            before = held or before
        ended = piece.endswith(("\n", "\r"))
        held = _COLOURS.sub("", piece.rstrip("\r\n")) if "\x1b" in piece else piece.rstrip("\r\n")
    if held is not None:
        yield held if ended else _without_half_a_number(held, before)


def _pieces(path: Path, encoding: str) -> Iterator[str]:
    with _opened(path) as file, io.TextIOWrapper(file, encoding, errors="replace", newline="") as text:
        try:
            while piece := text.readline(_LONGEST_LINE):
                yield piece
        except (UnicodeError, *_BROKEN):
            return  # the rest of it is not there yet


def _without_half_a_number(line: str, before: str) -> str:
    last, usual = _LAST_NUMBER.search(line), _LAST_NUMBER.search(before)
    half = last is not None and usual is not None and len(last[0]) < len(usual[0])
    return line[: last.start()] if half and last is not None else line


def _opened(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        first = file.read(6)
    for mark, opener in _COMPRESSED.items():
        if first.startswith(mark):
            return cast(BinaryIO, opener(path))
    return path.open("rb")
