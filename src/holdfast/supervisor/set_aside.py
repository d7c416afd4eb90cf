"""Make room for a script that refuses to start where an earlier attempt has saved: its checkpoints are moved, never deleted."""

from __future__ import annotations

import contextlib
import itertools
import re
from pathlib import Path

from holdfast.signals.run_folder import RunFolder
from holdfast.supervisor.resume import saved_by_the_script

_REFUSES = re.compile(r"not empty|already (?:present|exist)|exists? already", re.IGNORECASE)


def set_aside(run: RunFolder, message: str, attempt: int) -> Path | None:
    """Move what this run saved in the folder that the error names into a new `attempt-N` there; None if nothing was moved."""
    if not _REFUSES.search(message):
        return None
    folders: dict[Path, Path] = {}
    moved = None
    for path in saved_by_the_script(run):
        if not re.search(rf"(?:^|[\s'\"/]){re.escape(path.parent.name)}(?![\w/])", message):
            continue
        with contextlib.suppress(OSError):
            if path.parent not in folders:
                folders[path.parent] = _new_folder(path.parent, attempt)
            path.rename(folders[path.parent] / path.name)
            moved = folders[path.parent]
    return moved


def _new_folder(parent: Path, attempt: int) -> Path:
    """A run that is resumed counts its attempts from 1 again: what an earlier one moved must not be replaced."""
    free = next(folder for number in itertools.count(attempt) if not (folder := parent / f"attempt-{number}").exists())
    free.mkdir()
    return free
