"""What a process that crashes leaves behind: the stacks of its threads, written by `faulthandler` into the run folder.

A segmentation fault says nothing by itself. If the script has switched `faulthandler` on, or does so later, its own wins.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
from io import TextIOWrapper
from pathlib import Path

from holdfast.signals.run_folder import RunFolder

FOLDER = "faults"
_kept: list[TextIOWrapper] = []  # faulthandler keeps the number of the file, not the file


def listen(run: RunFolder) -> None:
    """Have the stacks of a crash written to `faults/PID.txt`; an empty file is removed when the process ends well."""
    if faulthandler.is_enabled() or _kept:
        return
    folder = run.path / FOLDER
    folder.mkdir(exist_ok=True)
    path = folder / f"{os.getpid()}.txt"
    file = path.open("w", encoding="utf-8")
    _kept.append(file)
    faulthandler.enable(file=file, all_threads=True)
    atexit.register(_remove_if_empty, path, os.getpid())


def _remove_if_empty(path: Path, pid: int) -> None:
    with contextlib.suppress(OSError):
        if pid == os.getpid() and path.stat().st_size == 0:
            path.unlink()
