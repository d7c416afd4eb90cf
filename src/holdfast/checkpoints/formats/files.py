"""What is said about files as such, whatever their format."""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.checkpoints.contents import FileInfo, Trouble

_LONGEST_NAME = 200  # characters


def file_info(path: Path) -> FileInfo:
    """Size and time of a file. Raises OSError, also for a pipe, a socket or a device: opening one may wait forever."""
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    return FileInfo(path, facts.st_size, facts.st_mtime)


def holds(question: Callable[[], bool]) -> bool:
    """The answer to `path.is_dir` and the like; no, where the system cannot even say, as for a name that is too long."""
    try:
        return question()
    except (OSError, ValueError):
        return False


def no_access(error: OSError, where: str = "") -> Trouble:
    """The trouble of a file that the system does not let us read."""
    if isinstance(error, PermissionError):
        return Trouble("unreadable", "It may not be read by this user.", "ask its owner, or: chmod u+r", where)
    if isinstance(error, FileNotFoundError):
        return Trouble("unreadable", "It went away while it was looked at.", "look again: something removes or renames it", where)
    return Trouble(
        "unreadable",
        f"It cannot be read: {error.strerror or error}.",
        "see whether the disk or the network share is all right",
        where,
    )


def few(names: Sequence[str], most: int = 3) -> str:
    """Some names, and how many more there are: "a, b, c and 4 more"."""
    first = ", ".join(map(shown, names[:most]))
    return f"{first} and {len(names) - most:,} more" if len(names) > most else first


def shown(name: str) -> str:
    """A name from a file as it may be printed: not too long, and with nothing in it that a terminal would obey."""
    short = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
    return short if short.isprintable() else ascii(short)
