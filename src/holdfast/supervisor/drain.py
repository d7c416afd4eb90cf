"""Go on copying for processes that outlive the command: `python drain.py LOG FROM:TO …`.

`run.sh` may start `python train.py &` and end. Without us such a process keeps the terminal or file it was started
with; when the supervisor leaves, this takes over its ends of the channels until the last holder has closed them.
Standard library only, run as a file, so that it starts at once and stays small.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys


def main(log: str, pairs: list[str]) -> None:
    """Copy each FROM descriptor to its TO descriptor, and into the log, until all have ended."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    targets = {int(source): int(target) for source, target in (pair.split(":") for pair in pairs)}
    poll = select.poll()
    for source in targets:
        poll.register(source, select.POLLIN)
    while targets:
        for source, _ in poll.poll():
            if not _copy(source, targets[source], log):
                poll.unregister(source)
                os.close(source)
                del targets[source]


def _copy(source: int, target: int, log: str) -> bool:
    try:
        part = os.read(source, 1 << 16)
        _write_all(target, part)
    except OSError:
        return False
    with contextlib.suppress(OSError):
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
        try:
            _write_all(descriptor, part)
        finally:
            os.close(descriptor)
    return bool(part)


def _write_all(target: int, part: bytes) -> None:
    while part:
        part = part[os.write(target, part) :]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
