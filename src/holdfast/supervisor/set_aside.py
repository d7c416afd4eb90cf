"""Move checkpoints that keep a script from starting again as it should: it refuses to start beside them, cannot load a damaged
one, or would take its newest one, which is from after the trouble.

Nothing is deleted.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from pathlib import Path
from typing import Any

from holdfast.signals.run_folder import RunFolder
from holdfast.supervisor.resume import changed, saved_by_the_script, step_of

_DAMAGED, _UNDONE = "damaged", "undone"  # the folders for them
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


def set_damaged_aside(run: RunFolder, since: float) -> Path | None:
    """Move the file that `torch.load` failed on, so that a script that takes its newest checkpoint takes the one before.

    A save into a folder of its own is moved as a whole. Only what this run has written is moved; None if nothing was.
    """
    rows = list(run.journal)
    failed = [row for row in rows if row.get("event") == "unreadable" and float(row["time"]) >= since]
    if not failed or changed(path := Path(str(failed[-1]["path"]))) < float(run.info().get("started") or 0.0):
        return None
    return _move(run, path.parent if _is_one_save(path.parent, rows) else path, _DAMAGED)


def set_undone_aside(run: RunFolder, before: int) -> Path | None:
    """Move what the script saved at step `before` or later, so that one that takes its newest checkpoint takes an earlier one.

    What it has loaded itself stays: it may not start without it.
    """
    rows = list(run.journal)
    loaded = {row.get("path") for row in rows if row.get("event") == "loaded"}
    moved = None
    for path in saved_by_the_script(run):
        step = step_of(run, path, None)
        if step is not None and step >= before and str(path) not in loaded:
            moved = _move(run, path.parent if _is_one_save(path.parent, rows) else path, _UNDONE) or moved
    return moved


def _move(run: RunFolder, path: Path, name: str) -> Path | None:
    """Move a save into a new folder within the folder `name` beside it."""
    with contextlib.suppress(OSError):
        (path.parent / name).mkdir(exist_ok=True)
        moved = _new_folder(path.parent / name, 1) / path.name
        path.rename(moved)
        run.journal.write("checkpoint", event="set-aside", path=str(path), set_aside=str(moved))
        return moved
    return None


def _is_one_save(folder: Path, rows: list[dict[str, Any]]) -> bool:
    """Whether all in this folder is newer than a save of this run into another folder beside it: each save has its own folder."""
    others = [row for row in rows if row.get("event") == "saved" and row.get("by") != "guard" and row.get("path")]
    times = [float(row["time"]) for row in others if _are_siblings(Path(str(row["path"])).parent, folder)]
    return bool(times) and all(changed(file) > min(times) for file in folder.rglob("*"))


def _are_siblings(one: Path, other: Path) -> bool:
    return one != other and one.parent == other.parent


def _new_folder(parent: Path, attempt: int) -> Path:
    """A run that is resumed counts its attempts from 1 again: what an earlier one moved must not be replaced."""
    free = next(folder for number in itertools.count(attempt) if not (folder := parent / f"attempt-{number}").exists())
    free.mkdir()
    return free
