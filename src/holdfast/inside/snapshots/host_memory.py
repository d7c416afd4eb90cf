"""How much host memory this process may still take: the machine's, and that of the container it runs in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_UNLIMITED = 1 << 60


def available_memory() -> int:
    """Bytes that can be had without pushing others out."""
    return max(0, min([_of_machine(), *_of_groups()]))


def share_for_snapshots(fraction: float = 0.2) -> int:
    """Bytes that all snapshots of this rank may take together: a fraction of what is left, divided among the ranks here."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return int(available_memory() * fraction) // max(1, int(ranks) if ranks.isdigit() else 1)


def _of_machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (OSError, ValueError, AttributeError):
        return 4 << 30


def _of_groups(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """What is left in each control group that holds this process, with a limit (both versions)."""
    try:
        entries = [line.split(":", 2) for line in own.read_text(encoding="utf-8").splitlines()]
    except OSError:
        entries = []
    for _, controllers, path in (entry for entry in entries if len(entry) == 3):
        if not controllers:
            yield from _upwards(root, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            yield from _upwards(root / "memory", path, *names)


def _upwards(top: Path, path: str, limit: str, usage: str, cache: str) -> Iterator[int]:
    folder = top / path.lstrip("/")
    for group in (folder, *folder.parents):
        allowed, used = _number(group / limit), _number(group / usage)
        if allowed is not None and used is not None and allowed < _UNLIMITED:
            yield allowed - used + _statistic(group / "memory.stat", cache)
        if group == top:
            return


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _statistic(path: Path, name: str) -> int:
    """Memory of a group that files take and that is given up when it is needed."""
    try:
        for line in path.read_text(encoding="ascii").splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
