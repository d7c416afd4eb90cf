"""The pulse of a rank: what its process is doing now, in 64 bytes that any other process can read at any time.

The file `pulse` lies in the folder of the rank's newest training; before its first step, in `starting/` of the run under the
process id. The rank writes it through memory, without a system call; whole cells of 8 bytes, so that nothing is read half.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from holdfast.signals.run_folder import Recording, RunFolder

NAME, STARTING = "pulse", "starting"
SIZE = 64
MAGIC = int.from_bytes(b"HFPULSE1", "little")
CELL_MAGIC, CELL_PID, CELL_STEPS, CELL_BEATS, CELL_PHASE, CELL_SINCE, CELL_EVALUATION = range(7)
PHASES = (
    *("starting", "training", "drawing", "evaluating", "saving", "loading", "collective", "compiling", "paused"),
    *("catching-up", "ending"),
)
(
    *(STARTS, TRAINING, DRAWING, EVALUATING, SAVING, LOADING, COLLECTIVE, COMPILING, PAUSED, CATCHING_UP, ENDING),
) = range(len(PHASES))  # fmt: skip
_LAYOUT = struct.Struct("<qqqqqdd8x")


@dataclass(frozen=True, slots=True)
class Pulse:
    """What a process does: `beats` grows with everything that is seen of it, `since` is when its phase began (`time.time`)."""

    pid: int
    steps: int
    beats: int
    phase: str
    since: float
    longest_evaluation: float


def parse(content: bytes) -> Pulse | None:
    """The pulse in the bytes of its file; None if they are none."""
    if len(content) < SIZE:
        return None
    magic, pid, steps, beats, phase, since, evaluation = _LAYOUT.unpack_from(content)
    if magic != MAGIC:
        return None
    return Pulse(pid, steps, beats, PHASES[phase] if 0 <= phase < len(PHASES) else "training", since, evaluation)


def read_pulse(recording: Recording) -> Pulse | None:
    """The pulse of the process that trains here; None if it has none, or has begun another training since."""
    return read_file(recording.path / NAME)


def read_file(path: Path) -> Pulse | None:
    """The pulse in a file."""
    with contextlib.suppress(OSError):
        return parse(path.read_bytes())
    return None


def starting(run: RunFolder) -> list[Pulse]:
    """Processes of a run that have begun to do something, and have not made a step yet."""
    with contextlib.suppress(OSError):
        return [pulse for path in sorted((run.path / STARTING).iterdir()) if (pulse := read_file(path)) is not None]
    return []


def make_file(path: Path, content: bytes) -> mmap.mmap:
    """Make the file and open it as memory. Its bytes are written first: memory of a full disk ends a process. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, content.ljust(SIZE, b"\0"))
        return mmap.mmap(descriptor, SIZE)
    finally:
        os.close(descriptor)
