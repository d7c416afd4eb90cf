"""Memory of a process and all that it started, with what they share counted once.

On Linux that is the proportional share of each, and the shared memory through which workers hand over batches: between the worker
that has let go of a batch and the process that has not taken it yet, it is in nobody's address space. Elsewhere it is what each
has resident, in which shared pages count several times.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any


def tree_memory(pid: int) -> int:
    """Bytes now; 0 where the process is gone."""
    import psutil

    processes: list[Any] = []
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        processes = [process, *process.children(recursive=True)]
    private = shared = 0
    handed: dict[tuple[int, int], int] = {}
    for one in processes:
        with contextlib.suppress(psutil.Error, OSError):
            own, common = _parts(one)
            private, shared = private + own, shared + common
            handed |= _open_shared(one.pid)
    return private + max(shared, sum(handed.values()))


def _parts(process: Any) -> tuple[int, int]:
    """What is its own, and its share of shared memory."""
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return int(process.memory_info().rss), 0
    rows = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    size = {name: int(value.split()[0]) * 1024 for name, value in rows.items() if name.startswith("Pss")}
    common = size.get("Pss_Shmem", 0)
    return size.get("Pss", 0) - common, common


def _open_shared(pid: int) -> dict[tuple[int, int], int]:
    """The pieces of shared memory that a process holds open: device and number, with their bytes."""
    found = {}
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(link.readlink()).startswith(("/dev/shm/", "/memfd:")):
                    file = link.stat()
                    found[file.st_dev, file.st_ino] = file.st_blocks * 512
    return found
