"""Is there disk space for checkpoints and runs: free space, free inodes, a folder that can be written?"""

from __future__ import annotations

import os
import shlex
import tempfile
from pathlib import Path

from holdfast.environment.check import Check, Fix, Verdict, ok, problem, together, warning
from holdfast.environment.machine import Machine
from holdfast.units import size

_LITTLE, _NOTHING = 10 << 30, 1 << 30  # a model of 1 billion parameters with Adam's state takes 12 GB a checkpoint
_FEW_FILES = 10_000


def ask(machine: Machine) -> Verdict:
    """The folder of the runs, and the one for temporary files if it lies elsewhere."""
    folder, temporary = machine.plans.folder.resolve(), Path(tempfile.gettempdir())
    verdicts = [room_in(folder, "runs")]
    if temporary.is_dir() and _device(temporary) != _device(folder):
        verdicts.append(room_in(temporary, "temporary files", little=1 << 30))
    return together(verdicts)


def room_in(folder: Path, purpose: str, *, little: int = _LITTLE) -> Verdict:
    """Room for one purpose in one folder."""
    try:
        usage = os.statvfs(folder)
    except OSError as error:
        return problem(f"the folder for {purpose} cannot be used: {error.strerror}", Fix("name another"), folder=str(folder))
    free, total = usage.f_bavail * usage.f_frsize, usage.f_blocks * usage.f_frsize
    facts = {f"free for {purpose}": free, f"folder for {purpose}": str(folder), f"inodes for {purpose}": usage.f_favail}
    here = shlex.quote(str(folder))
    clear = Fix("see what uses the space", (f"du -xh --max-depth=2 {here} | sort -h | tail -20",))
    if not os.access(folder, os.W_OK):
        return problem(
            f"the folder for {purpose} cannot be written: {folder}", Fix("choose a folder that you may write"), **facts
        )
    if usage.f_files and usage.f_favail < _FEW_FILES and usage.f_favail < usage.f_files // 20:
        fix = Fix("find the folders with the most files", (f"du --inodes -x {here} | sort -n | tail -20",))
        level = problem if usage.f_favail < 100 else warning
        return level(
            f"inodes for only {usage.f_favail:,} more files for {purpose}: 'No space left' with space left", fix, **facts
        )
    if free < min(little, total // 2):
        level = problem if free < min(_NOTHING, total // 10) else warning
        return level(f"{size(free)} free for {purpose} ({folder}): checkpoints may not fit", clear, **facts)
    return ok(f"{size(free)} free for {purpose}", **facts)


def _device(folder: Path) -> int:
    try:
        return folder.stat().st_dev
    except OSError:
        return -1


CHECK = Check(name="disk-space", asks="disk space for checkpoints and runs", ask=ask)
