"""What the command prints passes through here unchanged, and a copy goes into `train.log`.

Input is inherited. A stream that is a terminal stays one; the others become pipes. Where both are the same file, pipe
or terminal they share one channel, so that their order is kept. Each channel has a thread that writes what it has just
read; nothing is gathered up.

If the terminal goes away, what is printed goes into the log alone. If nobody reads our stdout any more (`| head`), our end of
the channel is closed: the command's next `print` meets a broken pipe, as it would without us. If the file behind stdout can take
no more (a full disk), the output is dropped and the training continues.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.supervisor.terminal import copy_size, open_terminal

_CHUNK = 1 << 16
_IDLE_SECONDS = 0.2
_LINGER_SECONDS = 2.0

Report = Callable[[str, BaseException], None]


@dataclass(slots=True)
class Channel:
    """From descriptors `fds` of the child to our descriptor `target`."""

    ours: int
    theirs: int
    target: int
    fds: tuple[int, ...]
    terminal: bool
    held: bool = False

    def identity(self) -> str:
        """`1=device:inode:descriptor`: by it the training recognises the channel, and whether we still read it."""
        status = os.fstat(self.theirs)
        return f"{self.target}={status.st_dev}:{status.st_ino}:{self.ours}"


class Streams:
    """The channels of one command. `copy` gets what comes, and on which of its descriptors."""

    def __init__(self, copy: Callable[[bytes, int], None], report: Report) -> None:
        self._copy, self._report = copy, report
        self._ended, self._ended_writer = os.pipe()
        self._threads: list[threading.Thread] = []
        self._deadline = float("inf")
        self.channels = _open_channels()

    def file_actions(self) -> list[tuple[Any, ...]]:
        """What `posix_spawn` does in the child before the command starts."""
        return [(os.POSIX_SPAWN_DUP2, channel.theirs, fd) for channel in self.channels for fd in channel.fds]

    def identities(self) -> str:
        """The value of HOLDFAST_STREAMS."""
        return " ".join(channel.identity() for channel in self.channels)

    def start(self) -> None:
        """Let go of the child's ends, and copy."""
        for channel in self.channels:
            os.close(channel.theirs)
            thread = threading.Thread(target=self._pump, args=(channel,), name="holdfast-stream", daemon=True)
            self._threads.append(thread)
            thread.start()

    def resize(self) -> bool:
        """Follow the window; True if a size has changed."""
        changed = [copy_size(channel.target, channel.ours) for channel in self.channels if channel.terminal]
        return any(changed)

    def finish(self, hurry: threading.Event) -> list[Channel]:
        """After the command has ended: deliver the rest, and name the channels that someone else still holds open.

        A reader that does not read (`less`) is waited for, as the command would have waited, until `hurry` is set.
        """
        self._deadline = time.monotonic() + _LINGER_SECONDS
        os.close(self._ended_writer)
        for thread in self._threads:
            while thread.is_alive() and not hurry.is_set():
                thread.join(0.1)
        return [channel for channel in self.channels if channel.held]

    def _pump(self, channel: Channel) -> None:
        try:
            while self._wait(channel) and (part := _read(channel.ours)):
                self._copy(part, channel.fds[0])
                if not self._deliver(channel.target, part):
                    if not channel.terminal:
                        break
                    channel.target = os.open(os.devnull, os.O_WRONLY)  # the terminal went away; the log continues
        finally:
            if not channel.held:
                os.close(channel.ours)

    def _wait(self, channel: Channel) -> bool:
        """Wait for output. False when the command is gone and whoever still holds the channel is silent, or continues."""
        poll = select.poll()
        poll.register(channel.ours, select.POLLIN)
        poll.register(self._ended, select.POLLIN)
        ready = dict(poll.poll())
        if self._ended not in ready:
            return True
        channel.held = True
        poll.unregister(self._ended)
        if time.monotonic() > self._deadline or not poll.poll(_IDLE_SECONDS * 1000):
            return False
        channel.held = False
        return True

    def _deliver(self, target: int, part: bytes) -> bool:
        """Write all of it. False if nobody reads there any more."""
        try:
            while part:
                part = part[_write(target, part) :]
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.EIO, errno.EBADF):
                return False
            self._report("passing on the command's output", error)
        return True


def keep_standard_descriptors() -> None:
    """Fill a closed 0, 1 or 2 with /dev/null: files opened later must not take their place."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _open_channels() -> list[Channel]:
    """One channel for each different file behind 1 and 2. What cannot be opened is inherited instead."""
    opened: list[Channel] = []
    for fds in ((1, 2),) if os.path.sameopenfile(1, 2) else ((1,), (2,)):
        with contextlib.suppress(OSError):
            opened.append(_open_channel(fds[0], fds))
    return opened


def _open_channel(target: int, fds: tuple[int, ...]) -> Channel:
    terminal = os.isatty(target)
    return Channel(*(open_terminal(target) if terminal else os.pipe()), target, fds, terminal)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _CHUNK)
    except OSError as error:
        if error.errno != errno.EIO:  # a pseudo-terminal that nobody holds open any more
            raise
        return b""


def _write(descriptor: int, part: bytes) -> int:
    while True:
        try:
            return os.write(descriptor, part)
        except BlockingIOError:  # someone who shares this file has made it non-blocking
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()
