"""Keep the training's output alive when the supervisor is killed.

Under `holdfast run` stdout and stderr lead to the supervisor. If it dies, `print` would raise and the training would die with its
watchdog. So a thread waits for the supervisor to exit and then redirects both to what the supervisor wrote to, which was opened
while that was still possible.

On Linux the thread also holds a read end of each pipe. So nothing breaks between the exit and the redirect, and what was still in
the pipe is delivered; only what the supervisor was just handling is lost. Afterwards the thread copies what other processes
(loader workers, a shell script) still write into the pipe. On a terminal, a `print` at the very moment of the exit fails.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import threading
import time
from dataclasses import dataclass

from holdfast.signals.own_thread import OwnThread

_POLL_SECONDS = 1.0
_CHUNK_BYTES = 1 << 16
_MAX_CHUNKS = 64


class _Descriptor:
    """A descriptor of ours, as long as it is one: a script may close all that it did not open, and get the number for its own."""

    def __init__(self, number: int) -> None:
        self.number, self._what = number, os.fstat(number)

    def is_ours(self) -> bool:
        """Whether it is still what was opened."""
        try:
            return os.path.samestat(os.fstat(self.number), self._what)
        except OSError:
            return False

    def close(self) -> None:
        """Close it, if it is still ours."""
        if self.is_ours():
            os.close(self.number)


@dataclass(slots=True)
class _Stream:
    """A pipe or terminal to the supervisor: its identity, where the supervisor wrote to, our own read end of a pipe."""

    device: int
    inode: int
    supervisor_fd: str  # path of the supervisor's end of a pipe
    original: _Descriptor
    read_end: _Descriptor | None


_streams: list[_Stream] = []
_lock = threading.Lock()


def stay_alive_without(supervisor_pid: int) -> None:
    """Start the thread, once per process, if stdout or stderr leads to the supervisor."""
    with _lock:
        if _streams:
            return
        _streams.extend(_open_streams(supervisor_pid, os.environ.get("HOLDFAST_STREAMS", "")))
    if _streams:
        os.register_at_fork(after_in_child=_close_in_child)
        OwnThread(_wait_and_redirect, supervisor_pid, name="holdfast-outlive").start()


def _open_streams(supervisor_pid: int, description: str) -> list[_Stream]:
    """Open the streams in HOLDFAST_STREAMS (`1=device:inode:descriptor 2=…`) that this process's 1 or 2 lead to."""
    streams = []
    for word in description.split():
        with contextlib.suppress(ValueError, OSError):
            target, _, identity = word.partition("=")
            device, inode, descriptor = (int(number) for number in identity.split(":"))
            fd = next((fd for fd in (1, 2) if _leads_to(fd, device, inode)), None)
            if fd is not None:
                folder = f"/proc/{supervisor_pid}/fd"
                original = _Descriptor(_open_original(f"{folder}/{int(target)}"))
                streams.append(_Stream(device, inode, f"{folder}/{descriptor}", original, _open_read_end(fd)))
    return streams


def _leads_to(fd: int, device: int, inode: int) -> bool:
    with contextlib.suppress(OSError):
        status = os.fstat(fd)
        return (status.st_dev, status.st_ino) == (device, inode)
    return False


def _open_original(path: str) -> int:
    """Open what the supervisor writes to, without blocking: a pipe that nobody reads would hang here."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)
    os.set_blocking(descriptor, True)
    return descriptor


def _open_read_end(fd: int) -> _Descriptor | None:
    with contextlib.suppress(OSError):
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            return _Descriptor(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK))
    return None


def _wait_and_redirect(supervisor_pid: int) -> None:
    pidfd: _Descriptor | None = None
    with contextlib.suppress(OSError, AttributeError):
        pidfd = _Descriptor(os.pidfd_open(supervisor_pid))
    while not _exits_within_a_second(supervisor_pid, pidfd):
        for stream in _streams:
            _follow_supervisor(stream)
    for stream in _streams:
        _drain(stream)
        for fd in (1, 2):
            if _leads_to(fd, stream.device, stream.inode):
                with contextlib.suppress(OSError):
                    os.dup2(stream.original.number if stream.original.is_ours() else os.open(os.devnull, os.O_WRONLY), fd)
    _copy_for_others()


def _exits_within_a_second(pid: int, pidfd: _Descriptor | None) -> bool:
    if pidfd is not None and pidfd.is_ours():
        return _is_readable(pidfd.number, _POLL_SECONDS) and pidfd.is_ours()
    time.sleep(_POLL_SECONDS)
    try:
        os.kill(pid, 0)
    except OSError:
        return True
    return False


def _is_readable(fd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _follow_supervisor(stream: _Stream) -> None:
    """Close our read end once the living supervisor has closed its own (`| head`): the script must notice that."""
    if stream.read_end is None:
        return
    try:
        status = os.stat(stream.supervisor_fd)  # noqa: PTH116 - a path of the kernel's, checked every second
        is_closed = (status.st_dev, status.st_ino) != (stream.device, stream.inode)
    except OSError as error:  # if its folder is missing too, the supervisor itself is gone
        is_closed = isinstance(error, FileNotFoundError) and os.path.isdir(os.path.dirname(stream.supervisor_fd))  # noqa: PTH112, PTH120
    if is_closed:
        _close_read_end(stream)


def _close_read_end(stream: _Stream) -> None:
    descriptor, stream.read_end = stream.read_end, None
    if descriptor is not None:
        descriptor.close()


def _drain(stream: _Stream) -> None:
    """Deliver what is in the pipe before newer output; bounded, for a script that never stops printing."""
    for _ in range(_MAX_CHUNKS):
        source = stream.read_end
        if source is None or not source.is_ours() or not _copy(source, stream.original) or not _is_readable(source.number, 0):
            break


def _copy_for_others() -> None:
    """Copy what other processes still write into the pipes, until all of them have closed them."""
    sources = {end.number: stream for stream in _streams if (end := stream.read_end) is not None and end.is_ours()}
    poll = select.poll()
    for source in sources:
        poll.register(source, select.POLLIN)
    while sources:
        for source, _ in poll.poll():
            end = sources[source].read_end
            if end is None or not _copy(end, sources[source].original):
                poll.unregister(source)
                _close_read_end(sources.pop(source))


def _copy(source: _Descriptor, target: _Descriptor) -> bool:
    """Copy one chunk; whether the source is still open."""
    if not source.is_ours() or not target.is_ours():
        return False
    try:
        chunk = os.read(source.number, _CHUNK_BYTES)
        rest = chunk
        while rest:
            rest = rest[os.write(target.number, rest) :]
    except BlockingIOError:  # another rank was faster
        return True
    except OSError:
        return False
    return bool(chunk)


def _close_in_child() -> None:
    """In a forked child, which has no such thread: close everything that would keep a stream open."""
    for stream in _streams:
        stream.original.close()
        _close_read_end(stream)
    _streams.clear()
