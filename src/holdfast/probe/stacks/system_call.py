"""Which system call a waiting thread is in, and on which file: Linux says so to whoever may trace the process."""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path

_ON_A_FILE = ("read", "write", "pread", "readv", "recv", "recvmsg", "accept", "connect", "fsync", "flock", "fcntl")
_NUMBERS = {
    "x86_64": {
        0: "read",
        1: "write",
        2: "open",
        7: "poll",
        17: "pread",
        19: "readv",
        23: "select",
        35: "sleep",
        42: "connect",
        43: "accept",
        45: "recv",
        47: "recvmsg",
        61: "wait",
        72: "fcntl",
        73: "flock",
        74: "fsync",
        202: "futex",
        230: "sleep",
        232: "poll",
        247: "wait",
        257: "openat",
        262: "statat",
        270: "select",
        271: "poll",
        281: "poll",
        288: "accept",
        332: "statat",
        4: "stat",
        6: "stat",
    },
    "aarch64": {
        22: "poll",
        25: "fcntl",
        32: "flock",
        56: "openat",
        63: "read",
        64: "write",
        65: "readv",
        67: "pread",
        72: "select",
        73: "poll",
        79: "statat",
        82: "fsync",
        95: "wait",
        98: "futex",
        101: "sleep",
        115: "sleep",
        202: "accept",
        203: "connect",
        207: "recv",
        212: "recvmsg",
        242: "accept",
        260: "wait",
        291: "statat",
    },
}
_LONGEST_PATH = 4096
RUNNING = "running"


def system_call(pid: int, thread: int) -> str | None:
    """`read FILE`, `open FILE`, `poll`, `sleep`, …; `running` if it is in none; None if this system does not tell."""
    names = _NUMBERS.get(platform.machine(), {})
    with contextlib.suppress(OSError, ValueError):
        fields = Path(f"/proc/{pid}/task/{thread}/syscall").read_text().split()
        if fields == [RUNNING]:
            return RUNNING
        if not fields or not fields[0].isdigit() or (name := names.get(int(fields[0]))) is None:
            return None
        arguments = [int(word, 16) for word in fields[1:]]
        if name in ("open", "stat", "openat", "statat"):
            path = _text_at(pid, arguments[1 if name.endswith("at") else 0])
            return f"{name.removesuffix('at') if name == 'openat' else 'stat'} {path}".strip()
        if name in _ON_A_FILE:
            return f"{name} {_file(pid, arguments[0])}".strip()
        return name
    return None


def _file(pid: int, number: int) -> str:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/fd/{number}").readlink())
    return ""


def _text_at(pid: int, address: int) -> str:
    with contextlib.suppress(OSError, ValueError, OverflowError), open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:  # noqa: PTH123
        memory.seek(address)
        return memory.read(_LONGEST_PATH).partition(b"\0")[0].decode(errors="replace")
    return ""
