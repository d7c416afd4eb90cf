"""Which runs live on this machine: one small file per run in the user's runtime folder, so that `ps` finds them all."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from holdfast.signals.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run whose outside process is alive (or was, a moment ago)."""

    folder: Path
    pid: int


def runtime_folder() -> Path:
    """A folder that belongs to this user alone; made if it is not there."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    path = (
        Path(base) / "holdfast" if base and os.access(base, os.W_OK) else Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}"
    )
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if status.st_uid != os.getuid() or not path.is_dir() or path.is_symlink():
        raise PermissionError(f"{path} belongs to another user")
    return path


def register(run: RunFolder, pid: int) -> None:
    """List a run as live. A runtime folder that cannot be written only hides the run from `ps` elsewhere."""
    with contextlib.suppress(OSError):
        spare = runtime_folder() / f".{pid}.json"
        spare.write_text(json.dumps({"folder": str(run.path), "pid": pid}), encoding="utf-8")
        spare.replace(runtime_folder() / f"{pid}.json")


def forget(pid: int) -> None:
    """Take a run off the list."""
    with contextlib.suppress(OSError):
        (runtime_folder() / f"{pid}.json").unlink()


def live_runs() -> list[LiveRun]:
    """The listed runs whose process exists; entries of dead ones are removed."""
    runs = []
    with contextlib.suppress(OSError):
        for entry in sorted(runtime_folder().glob("[0-9]*.json")):
            run = _read(entry)
            if run is not None and is_alive(run.pid) and run.folder.is_dir():
                runs.append(run)
            else:
                entry.unlink(missing_ok=True)
    return runs


def _read(entry: Path) -> LiveRun | None:
    try:
        content = json.loads(entry.read_text(encoding="utf-8"))
        return LiveRun(Path(content["folder"]), int(content["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_alive(pid: int) -> bool:
    """Whether there is a process with this number, ours or another user's."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
