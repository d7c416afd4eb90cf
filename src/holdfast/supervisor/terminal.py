"""A terminal for the child that adds nothing of its own: what goes in on its side comes out on ours."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import termios
import tty


def open_terminal(like: int) -> tuple[int, int]:
    """A pseudo-terminal (our end, the child's end) of the same size as `like`; raw, so that no newline is changed twice.

    It becomes nobody's controlling terminal: the child keeps the one we have, and Ctrl-C and Ctrl-Z with it.
    """
    ours, theirs = pty.openpty()
    try:
        tty.setraw(theirs)
    except BaseException:
        os.close(ours)
        os.close(theirs)
        raise
    copy_size(like, ours)
    return ours, theirs


def copy_size(source: int, target: int) -> bool:
    """Give `target` the window size of `source`; True if it has changed by that."""
    with contextlib.suppress(OSError):
        size, before = _size(source), _size(target)
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)
        return size != before
    return False


def _size(descriptor: int) -> bytes:
    return fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(8))
