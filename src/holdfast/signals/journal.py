"""The journal of a run: findings, diagnoses, actions, changes and checkpoints, one JSON object a line.

Many processes append to one file. Each line goes out in a single `write` on a descriptor opened for appending,
so lines never mix. A line cut off by a crash or a full disk is skipped when the journal is read, and does not take
the next one with it.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Journal:
    """Append to and read `journal.jsonl`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, kind: str, **fields: Any) -> None:
        """Append one entry; `kind` is finding, diagnosis, action, change or checkpoint. Raises OSError if the disk refuses."""
        entry = {"time": round(time.time(), 3), "kind": kind, **fields}
        line = (json.dumps(entry, ensure_ascii=False, default=str) + "\n").encode(errors="replace")
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            whole = line if _ends_with_a_line(descriptor) else b"\n" + line
            if os.write(descriptor, whole) != len(whole):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        finally:
            os.close(descriptor)

    def has_rows(self) -> bool:
        """Whether anything was written so far, without reading it."""
        try:
            return self.path.stat().st_size > 0
        except OSError:
            return False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return
        for line in text.split("\n"):  # splitlines() would also cut at U+2028 inside a string
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                yield entry


def _ends_with_a_line(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
