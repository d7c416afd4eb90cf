"""When a library can be loaded into a process without harm: a thread of it was stopped, and where it was stopped matters.

Loading needs the locks of the C library. A thread that was stopped inside of that, in the middle of `malloc`, may hold one of
them and would wait for itself for ever. So it must be stopped elsewhere: in code that is not the C library's, or asleep.
"""

from __future__ import annotations

import contextlib
import platform
import re
from pathlib import Path
from typing import NamedTuple

_C_LIBRARY = re.compile(r"(^|/)(libc[.-]|ld[.-]|libpthread|libdl|libm?i?malloc|libjemalloc|libtcmalloc)|malloc|^\[")
_WAITS_X86 = {0, 7, 23, 35, 43, 45, 47, 61, 202, 230, 232, 247, 270, 271, 281, 288}  # read, poll, select, nanosleep, futex, …
_WAITS_ARM = {22, 63, 72, 73, 95, 98, 101, 115, 202, 207, 212, 242, 260}
_WAITS = {"x86_64": _WAITS_X86, "aarch64": _WAITS_ARM, "arm64": _WAITS_ARM}
_FUTEX = {202, 98}
_INSTRUCTION = 8  # bytes, at most, of the instruction that enters the kernel, which is done again


class Place(NamedTuple):
    """Where a thread is: the call of the system that it is in, if it is in one, and the address of its next instruction."""

    call: int | None
    address: int | None

    @property
    def waits(self) -> bool:
        """Whether it waits in the kernel for something from outside."""
        return self.call in _WAITS.get(platform.machine(), set())


def threads(pid: int) -> list[tuple[int, Place]]:
    """The threads of a process and where they are: those first that sleep; helpers that wait for work before those that run."""
    found = [(thread, where(pid, thread)) for thread in (int(task.name) for task in Path(f"/proc/{pid}/task").glob("*"))]
    return sorted(found, key=lambda one: (not one[1].waits, one[1].call in _FUTEX, one[0]))


def is_good(pid: int, thread: int, before: Place) -> bool:
    """Whether a thread that is stopped now was stopped where it does no harm. What cannot be seen is not.

    A call that was interrupted is not always told any more: then it is one if the thread stands where it waited before.
    """
    now = where(pid, thread)
    if now.address is None:
        return False
    if now.call is not None:
        return now.waits
    if before.waits and before.address is not None and abs(before.address - now.address) <= _INSTRUCTION:
        return True
    return _C_LIBRARY.search(_file_at(pid, now.address)) is None


def where(pid: int, thread: int) -> Place:
    """Where a thread is, as far as that can be seen."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        words = Path(f"/proc/{pid}/task/{thread}/syscall").read_text().split()
        if words[0] != "running":
            number = int(words[0])
            return Place(number if number >= 0 else None, int(words[-1], 16))
    return Place(None, None)


def _file_at(pid: int, address: int) -> str:
    """The file that the code at an address comes from; made by a compiler at run time, it comes from none."""
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        span, _, rest = line.partition(" ")
        begin, _, end = span.partition("-")
        if int(begin, 16) <= address < int(end, 16):
            return rest.split(maxsplit=4)[-1].rpartition("/")[2] if "/" in rest or "[" in rest else ""
    return "["
