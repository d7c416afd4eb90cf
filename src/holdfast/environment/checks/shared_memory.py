"""Is /dev/shm large enough for the batches that loader workers hand over? Containers have 64 MB unless told otherwise."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from holdfast.environment.check import Check, Fix, Verdict, note, ok, problem, skipped, together, warning
from holdfast.environment.machine import Machine
from holdfast.units import count, size

_PREFETCH = 2  # torch's default: batches in flight for each worker
_USUAL_BATCH = 32 * 3 * 640 * 640 * 4  # 32 images of 640 × 640 as float32, about 157 MB
_OF_TORCH = re.compile(r"torch_(\d+)_")


def ask(machine: Machine, folder: Path = Path("/dev/shm")) -> Verdict:
    """Free space against workers × prefetch × batch."""
    if machine.platform.system != "Linux":
        return skipped("only Linux passes batches through /dev/shm")
    try:
        usage = os.statvfs(folder)
    except OSError as error:
        return problem(f"{folder} cannot be used ({error.strerror}): loader workers will fail", _in_container(machine))
    total, free = usage.f_blocks * usage.f_frsize, usage.f_bavail * usage.f_frsize
    verdicts = [_room(machine, total, free)]
    left = left_over(folder) if not machine.platform.container else []  # who runs in the next container is not seen from here
    if left:
        held = sum(bytes_ for _, bytes_ in left)
        fix = Fix("remove them", tuple(f"rm {path}" for path, _ in left[:20]))
        message = f"{count(len(left), 'file')} of finished trainings use {size(held)} of {folder}"
        verdicts.append((warning if held > total / 4 else note)(message, fix, left_over=held))
    return together(verdicts)


def _room(machine: Machine, total: int, free: int) -> Verdict:
    workers, batch = machine.workers, machine.plans.batch or _USUAL_BATCH
    needed = (workers * _PREFETCH + 1) * batch if workers else 0
    fits = free // (workers * _PREFETCH + 1)
    facts = {"size": total, "free": free, "workers": workers, "prefetch": _PREFETCH, "largest_batch": fits}
    fixes = (_in_container(machine), Fix("or load without workers: DataLoader(..., num_workers=0)"))
    in_words = f"{count(workers, 'worker')}, 2 batches each in flight"
    if needed <= free:
        return ok(f"{size(free)} free; a batch may take {size(fits)} with {count(workers, 'worker')}", **facts)
    if machine.plans.batch is not None:
        message = f"{size(free)} free, {size(needed)} needed for {in_words}, of {size(batch)}: workers will die with a bus error"
        return problem(message, *fixes, needed=needed, **facts)
    message = f"{size(free)} free of {size(total)}: with {in_words}, a batch above {size(fits)} ends in a bus error"
    return (problem if free < 128 << 20 else warning)(message, *fixes, **facts)


def _in_container(machine: Machine) -> Fix:
    if machine.platform.container:
        commands = ("docker run --shm-size=8g IMAGE", "docker run --ipc=host IMAGE")
        return Fix("give the container more shared memory (Kubernetes: an emptyDir with medium Memory on /dev/shm)", commands)
    return Fix("make it larger", ("sudo mount -o remount,size=8G /dev/shm",))


def left_over(folder: Path) -> list[tuple[Path, int]]:
    """Files that torch made for processes that are gone, and their sizes; of this user only, and in nobody's memory."""
    files = []
    for path in sorted(folder.glob("torch_*")):
        named = _OF_TORCH.match(path.name)
        with contextlib.suppress(OSError):
            status = path.stat()
            if named and status.st_uid == os.geteuid() and not Path(f"/proc/{named[1]}").exists():
                files.append((path, status.st_size))
    used = _in_use([path.name for path, _ in files]) if files else set()
    return [(path, held) for path, held in files if path.name not in used]


def _in_use(names: list[str]) -> set[str]:
    """Those that a living process has in its memory."""
    used: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            text = maps.read_text(errors="replace")
            used |= {name for name in names if name in text}
    return used


CHECK = Check(name="shared-memory", asks="/dev/shm for loader workers", ask=ask)
