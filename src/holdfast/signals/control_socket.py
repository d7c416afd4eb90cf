"""The control socket of a rank: a Unix socket in its folder, to ask its process. One JSON line in, one JSON line out.

The path of a socket may have about 100 bytes, a run folder any number: where the system has `/proc`, the folder is opened and
the socket reached through its descriptor. Where that is not so, or the folder's file system holds no sockets, the socket lies in
the user's runtime folder and `control.json` says where.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.signals.registry import runtime_folder

NAME, ELSEWHERE = "control", "control.json"
REQUEST_BYTES, ANSWER_BYTES = 1 << 20, 4 << 20  # at most, of one line
_PATH_BYTES = 100
_NUMBERS = ".changes"


class NoControlSocket(OSError):
    """There is no socket, or nobody listens at it."""


def listen_in(folder: Path) -> tuple[socket.socket, Path]:
    """A socket that listens in the folder of a rank, for this user alone; and where it lies. Raises OSError."""
    try:
        return _listen(folder, NAME), folder / NAME
    except OSError:
        elsewhere, name = runtime_folder(), f"{NAME}-{os.getpid()}-{os.urandom(4).hex()}"
        listening = _listen(elsewhere, name)
        (folder / ELSEWHERE).write_text(json.dumps({"socket": str(elsewhere / name)}) + "\n", encoding="utf-8")
        return listening, elsewhere / name


def connect_to(folder: Path, seconds: float) -> socket.socket:
    """A connection to whoever listens in the folder of a rank. Raises NoControlSocket, PermissionError or another OSError."""
    path = _path_in(folder)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(max(0.05, seconds))
    try:
        with _short(path) as name:
            connection.connect(name)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        connection.close()
        raise NoControlSocket(error.errno, error.strerror, str(path)) from error
    except OSError:
        connection.close()
        raise
    return connection


def is_there(folder: Path) -> bool:
    """Whether a socket lies in the folder of a rank; its process may be gone."""
    return (folder / NAME).is_socket() or (folder / ELSEWHERE).exists()


def remove(folder: Path, path: Path) -> None:
    """Take a socket away that nobody listens at any more."""
    for gone in (path, folder / ELSEWHERE):
        with contextlib.suppress(OSError):
            gone.unlink()


def send(connection: socket.socket, content: dict[str, Any]) -> None:
    """Send one line. Raises OSError."""
    connection.sendall(json.dumps(content, ensure_ascii=False, default=str).encode(errors="replace") + b"\n")


def receive(connection: socket.socket, *, at_most: int, seconds: float) -> dict[str, Any]:
    """The one line that comes. Raises TimeoutError, ValueError for what is no object or too long, EOFError if nothing came."""
    until, parts, size = time.monotonic() + seconds, bytearray(), 0
    while not parts.endswith(b"\n"):
        connection.settimeout(max(0.05, until - time.monotonic()))
        part = connection.recv(65536)
        if not part:
            raise EOFError("the other side has gone")
        parts += part
        size += len(part)
        if size > at_most:
            raise ValueError(f"more than {at_most} bytes")
        if time.monotonic() > until:
            raise TimeoutError
    content = json.loads(parts)
    if not isinstance(content, dict):
        raise ValueError("not an object")
    return content


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """User id and process id of who is at the other end; the process is -1 where the system does not tell. Raises OSError."""
    if hasattr(socket, "SO_PEERCRED"):
        pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        return uid, pid
    if sys.platform == "darwin":
        _, uid = struct.unpack("2I", connection.getsockopt(0, 1, struct.calcsize("2I") + 68)[:8])  # LOCAL_PEERCRED
        return uid, -1
    raise OSError("this system does not say who asks")


def next_number(run: Path) -> int:
    """The number of the next change to a run; nobody else gets the same. Raises OSError."""
    descriptor = os.open(run / _NUMBERS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        text = os.pread(descriptor, 32, 0)
        number = 1 + (int(text) if text.strip().isdigit() else 0)
        os.pwrite(descriptor, str(number).encode(), 0)
        return number
    finally:
        os.close(descriptor)


def _listen(folder: Path, name: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(OSError):
            (folder / name).unlink()
        with contextlib.suppress(OSError):
            os.fchmod(listening.fileno(), 0o600)  # so that it is never there with other rights, where the system heeds it
        with _short(folder / name) as path:
            listening.bind(path)
            os.chmod(path, 0o600)  # noqa: PTH101 - the path is not one that pathlib should tidy
        listening.listen(16)
    except OSError:
        listening.close()
        raise
    return listening


def _path_in(folder: Path) -> Path:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return Path(json.loads((folder / ELSEWHERE).read_text(encoding="utf-8"))["socket"])
    return folder / NAME


class _short:
    """A path to the same place that is short enough for a socket, as long as this is open."""

    def __init__(self, path: Path) -> None:
        self._path, self._folder = path, -1

    def __enter__(self) -> str:
        if len(os.fsencode(self._path)) <= _PATH_BYTES:
            return str(self._path)
        self._folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        name = f"/proc/self/fd/{self._folder}/{self._path.name}"
        if not Path("/proc/self/fd").is_dir():
            self.__exit__()
            raise OSError(f"the path is too long for a socket on this system: {self._path}")
        return name

    def __exit__(self, *_: object) -> None:
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1
