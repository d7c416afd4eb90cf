"""What happened during a drill, kept in its folder: a line for each event, and a mark for each injected fault.

A mark is a file that only one process can make: a fault happens once, in one worker of several, and not again after a restart.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FILE = "drill.jsonl"


class Notes:
    """The lines and marks of one drill."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, event: str, **more: Any) -> None:
        """Append a line; it is on its way to the disk when this returns, whatever happens to the process then."""
        line = json.dumps({"event": event, "time": time.time(), "pid": os.getpid(), **more}) + "\n"
        handle = os.open(self.folder / _FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)

    def mark(self, name: str) -> bool:
        """Whether this is the first to make that mark."""
        try:
            os.close(os.open(self.folder / name, os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        return True

    def unmark(self, name: str) -> None:
        """Take a mark back."""
        (self.folder / name).unlink(missing_ok=True)

    def marked(self, name: str) -> bool:
        """Whether anybody has made that mark."""
        return (self.folder / name).exists()

    def read(self) -> Iterator[dict[str, Any]]:
        """All lines so far."""
        try:
            text = (self.folder / _FILE).read_text()
        except FileNotFoundError:
            return
        for line in text.splitlines():
            yield json.loads(line)
