"""Where a thread is: whose code, which line, what it waits for; in words."""

from __future__ import annotations

import linecache
import os
import re
import sys
from pathlib import Path, PurePath

from holdfast.probe.stacks.frames import Frame, Thread

WORKER_LOOP = "_worker_loop"
_OURS = str(Path(__file__).resolve().parents[2]) + os.sep  # the package, wherever it is installed
_OURS_ELSEWHERE = re.compile(r"[/\\]holdfast[/\\]inside[/\\][a-z_/\\]+\.py$")  # the package of the machine a stack came from
_LIBRARY = re.compile(r"(^<)|[/\\](site-packages|dist-packages)[/\\]|[/\\]lib[/\\]python3[.\d]*t?[/\\]")
_INTERPRETER = re.compile(r"(libpython3|[/\\]python3?[\d.]*$)")
_OPEN_CALLS = {"open", "open64", "openat", "openat64", "__open64", "__openat64", "__libc_open64"}
_READ_CALLS = {"read", "__read", "__libc_read", "pread64", "readv", "recv", "recvfrom", "recvmsg", "__libc_recv"}
_SLEEPS = re.compile(r"(nanosleep|^u?sleep$|^time_sleep|pysleep)")
_GPU = re.compile(r"^(cuda|cu|hip)(Stream|Device|Ctx|Event)Synchronize|^(cuda|cu|hip)Memcpy")
_CALLS = {
    "poll": "waits for input (poll)",
    "select": "waits for input (select)",
    "sleep": "sleeps",
    "wait": "waits for a child process",
    "accept": "waits for a connection",
    "connect": "connects",
    "fsync": "waits for the disk",
    "flock": "waits for a file lock",
    "fcntl": "waits for a file lock",
}


def is_library(frame: Frame) -> bool:
    """Whether a frame belongs to Python, to an installed package or to Holdfast, and not to the user's own code."""
    return frame.native or bool(_LIBRARY.search(frame.file)) or is_ours(frame)


def is_ours(frame: Frame) -> bool:
    """Whether a frame is Holdfast's own."""
    return frame.file.startswith(_OURS) or _OURS_ELSEWHERE.search(frame.file) is not None


def user_frame(thread: Thread) -> Frame | None:
    """The innermost frame of the user's own code; of a library's where there is none."""
    python = own_part(thread)
    return next((frame for frame in python if not is_library(frame)), python[0] if python else None)


def own_part(thread: Thread) -> tuple[Frame, ...]:
    """Python frames that are the process's own: of a forked loader worker, those below its loop are its parent's."""
    python = thread.python
    loop = next((index for index, frame in enumerate(python) if frame.func == WORKER_LOOP), len(python))
    return python[: loop + 1]


def package_of(frame: Frame) -> str:
    """The library that a frame is in: torch, numpy, python; Holdfast is holdfast."""
    if is_ours(frame):
        return "holdfast"
    if frame.native:
        name = PurePath(frame.module or frame.file).name
        return "python" if _INTERPRETER.search(frame.module or frame.file) else name.partition(".")[0]
    match = re.search(r"(?:site|dist)-packages[/\\]([^/\\]+)", frame.file)
    return match[1].removesuffix(".py") if match else "python"


def short_file(file: str) -> str:
    """A file as short as it is still clear: from here, from its package, else its last two parts."""
    if match := re.search(r"(?:site|dist)-packages[/\\](.*)$", file):
        return match[1]
    if match := re.search(r"[/\\]lib[/\\]python3[.\d]*t?[/\\](.*)$", file):
        return match[1]
    if is_ours(Frame("", file, 0)):
        return "holdfast/" + file.rpartition("/holdfast/")[2]
    path = PurePath(file)
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(PurePath(*path.parts[-2:])) if len(path.parts) > 2 else file


def place(frame: Frame) -> str:
    """`read_config() (train.py:13)`."""
    name = "the script" if frame.func == "<module>" else f"{frame.func.rpartition('<locals>.')[2]}()"
    return f"{name} ({short_file(frame.file)}:{frame.line})"


def source_line(frame: Frame) -> str:
    """The text of the line that a frame is at; nothing where the file cannot be read."""
    text = "" if frame.native or frame.line <= 0 else linecache.getline(frame.file, frame.line)
    return text.partition("  # ")[0].strip()


def native_part(thread: Thread) -> list[Frame]:
    """C code below the innermost Python function, innermost first; the interpreter's own functions are skipped."""
    frames: list[Frame] = []
    for frame in thread.frames:
        if not frame.native:
            return frames
        if not _INTERPRETER.search(frame.module or frame.file) and package_of(frame) != PurePath(sys.executable).name:
            frames.append(frame)
    return frames


def native_name(thread: Thread) -> str | None:
    """The innermost C function that has a name."""
    return next((frame.func for frame in native_part(thread) if not frame.func.startswith("0x")), None)


def waits_for_gpu(thread: Thread) -> str | None:
    """The function in which it waits for the GPU, if it does."""
    return next((frame.func for frame in native_part(thread) if _GPU.search(frame.func)), None)


def doing(thread: Thread) -> str | None:
    """What a thread is in: `open()` of FILE, `read()` of a pipe, sleeps, waits for the GPU; None if that cannot be told."""
    if (gpu := waits_for_gpu(thread)) is not None:
        return f"waits for the GPU ({gpu})"
    call, _, file = (thread.call or "").partition(" ")
    if call in ("open", "stat"):
        return f"is in {call}()" + (f" of {file}" if file else "")
    if call in ("read", "pread", "readv", "recv", "recvmsg", "write"):
        verb = {"pread": "read", "readv": "read", "recvmsg": "recv"}.get(call, call)
        return f"is in {verb}()" + (f" of {_described(file)}" if file else "")
    return _CALLS.get(call) or _by_native(thread)


def _by_native(thread: Thread) -> str | None:
    names = {frame.func for frame in thread.frames[: len(thread.frames) - len(thread.python)] if frame.native}
    if names & _OPEN_CALLS:
        return "is in open()"
    if names & _READ_CALLS:
        return "is in read()"
    return "sleeps" if any(_SLEEPS.search(name) for name in names) else None


def _described(file: str) -> str:
    """A pipe and a socket have no name that would help."""
    return {"pipe": "a pipe", "socket": "a socket", "anon_inode": "an event"}.get(file.partition(":")[0], file)
