"""The action queue of a run: actions decided by the supervisor, each for a step soon to come, the same on every rank.

A file of JSON lines in the run folder. The supervisor appends; each rank checks the file's size once a step and reads what is
new. A run may hold several trainings: each takes the actions for itself, and none from before it started.
No torch here: the supervisor uses this file too.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.signals.actions import QUEUE, Action

NAME = QUEUE


class QueuedAction(NamedTuple):
    """An action to apply before the update of step `at`; 0 is as soon as possible."""

    number: int
    at: int
    action: Action
    part: int | None = None  # the training of the run that it is for; None is all


class ActionQueue:
    """The reading end in a rank, opened before the first step."""

    def __init__(self, folder: Path, part: int = 0) -> None:
        self._path, self._part, self._file, self._offset = folder / NAME, part, -1, 0
        self._open()

    def new_actions(self) -> list[QueuedAction]:
        """The actions queued since the last call; one system call if there are none."""
        if self._file < 0 and not self._open():
            return []
        if os.lseek(self._file, 0, os.SEEK_END) <= self._offset:
            return []
        return self._read()

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> bool:
        """Start at the end of the file; the rest of a torn line there is skipped later."""
        with contextlib.suppress(OSError):
            self._file = os.open(self._path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._offset = os.fstat(self._file).st_size
        return self._file >= 0

    def _read(self) -> list[QueuedAction]:
        data = os.pread(self._file, 1 << 20, self._offset)
        lines = data[: data.rfind(b"\n") + 1]  # a line that is still being written is read next time
        self._offset += len(lines)
        actions = (action for line in lines.splitlines() if (action := _parse(line)) is not None)
        return [action for action in actions if action.part in (None, self._part)]


def post(folder: Path, number: int, at: int, action: Action, *, part: int | None = None) -> None:
    """Queue an action for one training of a run, or for all. Raises OSError."""
    line = (json.dumps({"number": number, "at": at, "part": part, **action.as_row()}) + "\n").encode()
    descriptor = os.open(folder / NAME, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"  # the disk was full
        data = b"\n" + line if torn else line
        if os.write(descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / NAME))
    finally:
        os.close(descriptor)


def _parse(line: bytes) -> QueuedAction | None:
    try:
        row: dict[str, Any] = json.loads(line)
        number, at, part = int(row["number"]), int(row["at"]), row.get("part")
        return QueuedAction(number, at, Action.from_row(row), None if part is None else int(part))
    except (ValueError, KeyError, TypeError):
        return None
