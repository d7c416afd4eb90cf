"""How a checkpoint looks in a terminal: its state in colour, what is wrong with it, its name shortened."""

from __future__ import annotations

import shlex
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.probe.words import plain

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.checkpoints.contents import Contents, Trouble

STYLES = {
    "clean": "green",
    "whole": "green",
    "non-finite": "bold red",
    "torn": "bold red",
    "unreadable": "yellow",
    "unsafe": "bold white on red",
}
_MOST = 8  # troubles of one checkpoint that are told


def page() -> Console:
    """Where the answer is printed: as wide as the terminal, or 100 columns elsewhere."""
    from holdfast.cli.output import output

    return output()


def fast_crc32() -> Any:
    """The fastest checksum there is; ten times as fast as Python's own."""
    try:
        from isal.isal_zlib import crc32
    except ImportError:
        from zlib import crc32
    return crc32


def shortened(text: str, width: int) -> str:
    """Text of at most so many columns, shortened in the middle."""
    text = plain(text)
    if len(text) <= width:
        return text
    tail = max(1, (2 * width) // 3)
    return f"{text[: max(0, width - tail - 1)]}…{text[-tail:]}"


def name_of(path: Path) -> str:
    """The path as one would type it here."""
    here = Path.cwd()
    return plain(str(path.relative_to(here) if path.is_absolute() and path.is_relative_to(here) else path)) or "."


def age(when: float | None) -> str:
    """How long ago, in one unit."""
    if when is None:
        return "–"
    seconds = max(0.0, time.time() - when)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:,.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def fix_of(trouble: Trouble, path: Path) -> str:
    """What to do, with the folder of the checkpoint in the command that it names."""
    return trouble.fix.replace("choose FOLDER", f"choose {shlex.quote(name_of(path.parent))}")


def trouble_lines(troubles: Sequence[Trouble], path: Path, width: int, indent: str) -> Iterator[tuple[str, str]]:
    """What is wrong with a checkpoint and what to do, folded to the width: (text, style). The same fix is shown once."""
    fixes: list[str] = []
    for trouble in troubles[:_MOST]:
        yield from ((line, "") for line in folded(trouble.text, width, indent))
        if fix_of(trouble, path) not in fixes:
            fixes.append(fix_of(trouble, path))
    if len(troubles) > _MOST:
        yield f"{indent}and {len(troubles) - _MOST} more of these", "dim"
    for fix in fixes:
        yield from ((line, "cyan") for line in folded(f"fix: {fix}", width, indent, hang="     "))


def folded(text: str, width: int, indent: str, hang: str = "") -> list[str]:
    """A sentence in lines of that width."""
    return textwrap.wrap(
        plain(text),
        max(40, width),
        initial_indent=indent,
        subsequent_indent=indent + hang,
        break_on_hyphens=False,
        break_long_words=True,
    ) or [""]


def in_one_row(contents: Contents) -> dict[str, Any]:
    """The JSON fields of a checkpoint, the same for every verb."""
    return {
        "path": str(contents.path),
        "format": contents.format,
        "producer": contents.producer,
        "size": contents.size,
        "files": len(contents.files),
        "modified": contents.modified or None,
    }
