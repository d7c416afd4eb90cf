"""What is said about files as such, whatever their format; and JSON from files that may be damaged or made to harm."""

from __future__ import annotations

import errno
import json
import re
import stat
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from holdfast.checkpoints.contents import FileInfo, Trouble

OLDER = "use an older one: holdfast checkpoints choose FOLDER"
OLDER_OR_COPY = "use an older one; if this one was copied, copy it again"
_LONGEST_NAME = 200  # characters
_PIECE = 4 << 20  # bytes that are read at a time


def file_info(path: Path) -> FileInfo:
    """Size and time of a file. Raises OSError, also for a pipe, a socket or a device: opening one may wait forever."""
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    return FileInfo(path, facts.st_size, facts.st_mtime)


def checksum(path: Path, offset: int, size: int, moved: Callable[[], None] = lambda: None) -> str:
    """Checksum of a stretch of a file, a piece at a time; `moved` is called after each."""
    crc, room = 0, memoryview(bytearray(min(_PIECE, max(size, 1))))
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        while size > 0 and (count := file.readinto(room[: min(size, len(room))])):
            crc = zlib.crc32(room[:count], crc)
            size -= count
            moved()
    return f"{crc:08x}"


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
        return Trouble("unreadable", "It disappeared while it was read.", "look again: something removes or renames it", where)
    return Trouble(
        "unreadable",
        f"It cannot be read: {error.strerror or error}.",
        "check the disk or the network share",
        where,
    )


def is_count(value: Any) -> bool:
    """Whether what a file gives for a length or an offset can be one."""
    return type(value) is int and 0 <= value < 1 << 62


def is_inside(name: str) -> bool:
    """Whether a name that a file gives stays in the file's own folder."""
    return bool(name) and not re.search(r"^[/\\]|[\0\\]|(^|/)\.\.?(/|$)", name)


def missing_ranks(pattern: str, names: Iterable[str]) -> list[str]:
    """Ranks whose file is not there. They are numbered from zero: one below the highest was not written, or not copied."""
    ranks = {int(match[1]) for name in names if (match := re.search(pattern, name))}
    return [f"rank {rank}" for rank in range(max(ranks, default=0)) if rank not in ranks]


def few(names: Iterable[object], most: int = 3) -> str:
    """Some names, and how many more there are: "a, b, c and 4 more"."""
    listed = [str(name) for name in names]
    first = ", ".join(map(shown, listed[:most]))
    return f"{first} and {len(listed) - most:,} more" if len(listed) > most else first


def shown(name: str) -> str:
    """A name from a file as it may be printed: not too long, and with nothing in it that a terminal would obey."""
    short = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
    return short if short.isprintable() else ascii(short)


LONGEST = 64 << 20  # bytes of a JSON file that is still read: a log of some 500,000 evaluations
_VALUES = 4_000_000  # as Python's objects these take 300 MB at the most


class BadJson(ValueError):
    """It is not JSON, or not such as can be trusted; the message says what, and where."""


def parse_json(data: bytes, *, most: int = _VALUES) -> Any:
    """The value in some bytes. A name that comes twice is refused: two readers could see two different files.

    `most` is how many values may be in it. They are counted before any is made: `[[],[],…` takes 25 times its size as objects.
    """
    values = sum(map(data.count, (b",", b"{", b"[")))
    if values > most:
        raise BadJson(f"it holds {values:,} values, and a file of its kind {most:,} at the most")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode("utf-8")  # half a surrogate pair can be neither printed nor written
    except UnicodeDecodeError as error:
        raise BadJson(f"byte {error.start} is not text") from None
    except UnicodeEncodeError:
        raise BadJson("it holds an invalid character") from None
    except json.JSONDecodeError as error:
        raise BadJson(f"{error.msg[:1].lower()}{error.msg[1:]} at character {error.pos}") from None
    except (RecursionError, MemoryError):
        raise BadJson("it is nested too deeply") from None
    except BadJson:
        raise
    except ValueError as error:
        raise BadJson(str(error)) from None
    return value


def read_json(path: Path) -> Any:
    """The value in a file. Raises BadJson, and OSError where it cannot be read."""
    if file_info(path).size > LONGEST:
        raise BadJson("it is too long for a file of its kind")
    data = path.read_bytes()
    if not data:
        raise BadJson("it is empty")
    if not data.strip(b"\0"):
        raise BadJson("it holds only zeros, as a machine crash leaves behind")
    return parse_json(data)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise BadJson(f"the name {twice!r} comes twice")
    return value
