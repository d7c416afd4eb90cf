"""Another process holds the tracker's SQLite file locked: a second run that writes to it, a page that reads it for long."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from holdfast.drills.fault import CannotHappen, Expected, Fault
from holdfast.drills.injection.context import FaultContext

_BEGINS = b"SQLite format 3\x00"
_HOLD = """
import sqlite3, sys, time
held = [sqlite3.connect(path, isolation_level=None, timeout=1.0) for path in sys.argv[2:]]
for one in held:
    one.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
time.sleep(float(sys.argv[1]))
"""


class MlflowLocked(Fault):
    """A small process locks every SQLite file that this one has open; `strength` is in seconds, more than SQLite waits."""

    code = "mlflow-locked"
    description = "another process locks the tracker's SQLite file for 12 seconds"
    expected = Expected(findings=("tracker-unreachable",), causes=("database-locked",), survivable=True)
    needs = ("database",)
    strength = 12.0

    def update(self, context: FaultContext) -> None:
        """Between two steps; it is locked when this returns."""
        files = sorted(_open_databases())
        if not files:
            raise CannotHappen("no SQLite file is open")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        command = [sys.executable, "-I", "-c", _HOLD, f"{self.strong:g}", *map(str, files)]
        holder = subprocess.Popen(command, env=kept, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        assert holder.stdout is not None
        if holder.stdout.readline() != b"locked\n":
            raise CannotHappen("the SQLite file could not be locked")


def _open_databases() -> set[Path]:
    """The SQLite files that this process has open."""
    paths = set()
    for link in Path("/proc/self/fd").iterdir() if Path("/proc/self/fd").is_dir() else ():
        try:
            path = link.readlink()
            if path.is_file():
                with path.open("rb") as file:
                    paths |= {path} if file.read(len(_BEGINS)) == _BEGINS else set()
        except OSError:
            continue
    return paths
