"""The mailbox of a run: actions that were decided outside, for a step in the near future, the same for every rank.

One file of JSON lines in the run folder. Outside appends; each rank looks at the file's size once a step and reads on from
where it was. A run may hold several trainings: each takes what is for it, and nothing that lay there before it began.
No torch here: the outside uses the same file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.signals.actions import Action

NAME = "mailbox.jsonl"


class QueuedAction(NamedTuple):
    """An action and when to do it: before the update of step `at`, or, where `at` is 0, as soon as it is read."""

    number: int
    at: int
    action: Action
    part: int | None = None  # the training of the run that it is for; None is for all


class ActionQueue:
    """The reading end, in a rank. It is opened before the first step, and letters are about steps: the own ones come later."""

    def __init__(self, folder: Path, part: int = 0) -> None:
        self._path, self._part, self._file, self._read = folder / NAME, part, -1, 0
        self._open()

    def new_actions(self) -> list[QueuedAction]:
        """The letters that have come since the last call; costs one system call when there are none."""
        if self._file < 0 and not self._open():
            return []
        if os.fstat(self._file).st_size <= self._read:
            return []
        return self._take()

    def close(self) -> None:
        """Let the file go."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> bool:
        """Begin at the end. If that is within a torn line, the rest of it is no letter, and passed over."""
        with contextlib.suppress(OSError):
            self._file = os.open(self._path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._read = os.fstat(self._file).st_size
        return self._file >= 0

    def _take(self) -> list[QueuedAction]:
        data = os.pread(self._file, 1 << 20, self._read)
        whole = data[: data.rfind(b"\n") + 1]  # a line that is still being written is read next time
        self._read += len(whole)
        actions = (action for line in whole.splitlines() if (action := _queued_action(line)) is not None)
        return [action for action in actions if action.part in (None, self._part)]


def post(folder: Path, number: int, at: int, action: Action, *, part: int | None = None) -> None:
    """Put an action into the mailbox of a run, for one of its trainings or for all. Raises OSError if it cannot be written."""
    line = (json.dumps({"number": number, "at": at, "part": part, **action.as_row()}) + "\n").encode()
    descriptor = os.open(folder / NAME, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"  # by a full disk
        whole = b"\n" + line if torn else line
        if os.write(descriptor, whole) != len(whole):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / NAME))
    finally:
        os.close(descriptor)


def _queued_action(line: bytes) -> QueuedAction | None:
    try:
        row: dict[str, Any] = json.loads(line)
        number, at, part = int(row["number"]), int(row["at"]), row.get("part")
        return QueuedAction(number, at, Action.from_row(row), None if part is None else int(part))
    except (ValueError, KeyError, TypeError):
        return None
