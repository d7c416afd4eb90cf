"""Go on printing when the supervisor was killed.

Under `holdfast run`, descriptors 1 and 2 lead to the supervisor. If it is gone, `print` would raise, and a training
would die of its watchdog's death. So a thread waits for that moment, and turns every descriptor that leads to the
supervisor over to what the supervisor wrote to; that was opened beforehand, while it could be found.

On Linux the thread also keeps a reading end of each pipe. Nothing breaks between the supervisor's death and the
turn-over, and what was still in the pipe is delivered; only what the supervisor was just handling is lost. The other
processes of the run, which have no such thread (loader workers, the shell script around it), can go on writing: this
thread now copies for them. A pseudo-terminal cannot be kept that way; its other users see an error.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import threading
import time
from dataclasses import dataclass

_POLL_SECONDS = 1.0
_CHUNK = 1 << 16
_ROUNDS = 64


@dataclass(slots=True)
class _Stream:
    """A channel to the supervisor: how to recognise it, where its output went, our own reading end of it."""

    device: int
    inode: int
    supervisors_end: str
    original: int
    reading: int | None


_streams: list[_Stream] = []
_lock = threading.Lock()


def stay_alive_without(supervisor_pid: int) -> None:
    """Start the thread, once in a process. Does nothing if neither 1 nor 2 leads to the supervisor."""
    with _lock:
        if _streams:
            return
        _streams.extend(_find_streams(supervisor_pid, os.environ.get("HOLDFAST_STREAMS", "")))
    if _streams:
        os.register_at_fork(after_in_child=_forget)
        threading.Thread(target=_wait_and_turn_over, args=(supervisor_pid,), name="holdfast-outlive", daemon=True).start()


def _find_streams(supervisor_pid: int, said: str) -> list[_Stream]:
    """The streams named in HOLDFAST_STREAMS (`1=device:inode:descriptor 2=…`) that 1 or 2 of this process lead to."""
    found = []
    for word in said.split():
        with contextlib.suppress(ValueError, OSError):
            target, _, identity = word.partition("=")
            device, inode, descriptor = (int(number) for number in identity.split(":"))
            fd = next((fd for fd in (1, 2) if _leads_to(fd, device, inode)), None)
            if fd is not None:
                folder = f"/proc/{supervisor_pid}/fd"
                original = _open_original(f"{folder}/{int(target)}")
                found.append(_Stream(device, inode, f"{folder}/{descriptor}", original, _open_reading(fd)))
    return found


def _leads_to(fd: int, device: int, inode: int) -> bool:
    with contextlib.suppress(OSError):
        status = os.fstat(fd)
        return (status.st_dev, status.st_ino) == (device, inode)
    return False


def _open_original(path: str) -> int:
    """What the supervisor writes to. Not blocking while it is opened: a pipe that nobody reads would hold us up here."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)
    os.set_blocking(descriptor, True)
    return descriptor


def _open_reading(fd: int) -> int | None:
    with contextlib.suppress(OSError):
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
    return None


def _wait_and_turn_over(supervisor_pid: int) -> None:
    handle = _open_process(supervisor_pid)
    while not _ends_within_a_second(supervisor_pid, handle):
        for stream in _streams:
            _follow(stream)
    _deliver_what_waits()
    _turn_over()
    _copy_for_others()


def _open_process(pid: int) -> int | None:
    with contextlib.suppress(OSError, AttributeError):
        return os.pidfd_open(pid)
    return None


def _ends_within_a_second(pid: int, handle: int | None) -> bool:
    if handle is not None:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(_POLL_SECONDS * 1000))
    time.sleep(_POLL_SECONDS)
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, PermissionError)
    return False


def _follow(stream: _Stream) -> None:
    """Close our reading end once the living supervisor has closed its own (`| head`): the script shall see that."""
    if stream.reading is None:
        return
    try:
        status = os.stat(stream.supervisors_end)  # noqa: PTH116 - a path of the kernel's, asked every second
    except FileNotFoundError:
        if not os.path.isdir(os.path.dirname(stream.supervisors_end)):  # noqa: PTH112, PTH120
            return  # it is the supervisor that is gone
    except OSError:
        return
    else:
        if (status.st_dev, status.st_ino) == (stream.device, stream.inode):
            return
    _stop_reading(stream)


def _stop_reading(stream: _Stream) -> None:
    descriptor, stream.reading = stream.reading, None
    if descriptor is not None:
        os.close(descriptor)


def _deliver_what_waits() -> None:
    """First what was printed first. Bounded: a script that prints without end is turned over all the same."""
    for stream in _streams:
        for _ in range(_ROUNDS):
            if stream.reading is None or not _copy(stream.reading, stream.original) or _is_empty(stream.reading):
                break


def _is_empty(source: int) -> bool:
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return not poll.poll(0)


def _turn_over() -> None:
    for stream in _streams:
        for fd in (1, 2):
            if _leads_to(fd, stream.device, stream.inode):
                with contextlib.suppress(OSError):
                    os.dup2(stream.original, fd)


def _copy_for_others() -> None:
    """Deliver what is left in the pipes and what others still write into them, until they have all let go."""
    sources = {stream.reading: stream for stream in _streams if stream.reading is not None}
    poll = select.poll()
    for source in sources:
        poll.register(source, select.POLLIN)
    while sources:
        for source, _ in poll.poll():
            if not _copy(source, sources[source].original):
                poll.unregister(source)
                _stop_reading(sources.pop(source))


def _copy(source: int, target: int) -> bool:
    try:
        part = os.read(source, _CHUNK)
        rest = part
        while rest:
            rest = rest[os.write(target, rest) :]
    except BlockingIOError:  # another rank was faster
        return True
    except OSError:
        return False
    return bool(part)


def _forget() -> None:
    """A forked child has no such thread, and holds nothing that would keep a stream open."""
    for stream in _streams:
        for descriptor in (stream.original, stream.reading):
            if descriptor is not None:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
    _streams.clear()
