"""Which sample and which line of the user's code an error comes from."""

from __future__ import annotations

import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_IN_TEXT = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<name>\S+)', re.MULTILINE)
_LONGEST = 300


def of_error(error: BaseException) -> str:
    """The error and the line, of one that was raised here; one of a worker carries its own traceback as text."""
    text = str(error)
    if "Original Traceback" in text:
        return of_text(text)
    frames = [(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    return _sentence(type(error).__name__, text, frames)


def of_text(text: str) -> str:
    """The same of a traceback in words, as torch hands it over from a worker."""
    frames = [(match["file"], int(match["line"]), match["name"]) for match in _IN_TEXT.finditer(text)]
    lines = [line for line in text.splitlines() if line and not line.startswith(" ")]
    kind, _, message = (lines[-1] if lines else "").partition(":")
    return _sentence(kind.rpartition(".")[2], message.strip(), frames)


def where(stack: str) -> str:
    """The line of the user's code at which a process stands, by what faulthandler wrote: the newest call comes first."""
    frames = [(match["file"], int(match["line"]), match["name"]) for match in _IN_TEXT.finditer(stack)]
    return _place(frames[::-1])


def sample_of(dataset: Any, indices: Iterable[Any]) -> tuple[Any, str] | None:
    """The first of these samples that raises, and what it says; None where none does this time."""
    for index in indices:
        try:
            dataset[index]
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            return index, of_error(error)
    return None


def _sentence(kind: str, message: str, frames: list[tuple[str, int, str]]) -> str:
    place = _place(frames)
    message = " ".join(message.split())[:_LONGEST]
    return f"{kind}: {message}".removesuffix(": ") + (f" ({place})" if place else "")


def _place(frames: list[tuple[str, int, str]]) -> str:
    """The innermost line that is the user's own, or the innermost of all."""
    own = [frame for frame in frames if not _is_library(frame[0])]
    if not own:
        return ""
    file, line, name = own[-1]
    path = Path(file)
    here = Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{line}, in {name}"


def _is_library(file: str) -> bool:
    paths = {sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return file.startswith((*paths, "<", str(Path(__file__).parent))) or "site-packages" in file or file == sys.executable
