"""The limits of the control group, of version 2 and version 1: what a container may use of the machine it shows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60  # version 1 writes "none" with a huge number


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the group may use; None where there is no limit. `memory_used` is without the files that could be dropped."""

    memory: int | None = None
    memory_used: int | None = None
    cpus: float | None = None
    processes: int | None = None
    processes_used: int | None = None


def read_limits(root: Path = ROOT, cgroups: str | None = None) -> Limits:
    """The smallest limits of our group and of those around it. `cgroups` is the text of /proc/self/cgroup."""
    groups = list(_groups(root, _ours() if cgroups is None else cgroups))
    memory = _smallest(groups, _memory)
    processes = _smallest(groups, lambda group: _number(group / "pids.max"))
    return Limits(
        memory=int(memory[0]) if memory else None,
        memory_used=_memory_used(memory[1]) if memory else None,
        cpus=cpus[0] if (cpus := _smallest(groups, _cpus)) else None,
        processes=int(processes[0]) if processes else None,
        processes_used=_used(processes[1], "pids.current") if processes else None,
    )


def _groups(root: Path, cgroups: str) -> Iterator[Path]:
    """Folders of our group and of each one around it."""
    for line in cgroups.splitlines():
        _, kinds, path = (*line.split(":", 2), "", "")[:3]
        tops = [root, root / "unified"] if kinds == "" else [root / kinds, *(root / kind for kind in kinds.split(","))]
        for top in tops:
            folder = top / path.lstrip("/")
            while folder != top and top in folder.parents:  # a container may be told a path that it cannot see
                yield folder
                folder = folder.parent
            yield top


def _smallest(groups: list[Path], limit: Callable[[Path], float | None]) -> tuple[float, Path] | None:
    limits = [(value, group) for group in groups if (value := limit(group)) is not None]
    return min(limits, key=lambda limit: limit[0]) if limits else None


def _memory(group: Path) -> int | None:
    value = _number(group / "memory.max")
    if value is None:
        value = _number(group / "memory.limit_in_bytes")
    return value if value is not None and value < _NO_LIMIT else None


def _memory_used(group: Path) -> int | None:
    used = _used(group, "memory.current", "memory.usage_in_bytes")
    with contextlib.suppress(OSError, ValueError):
        counters = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
        files = int(counters.get("total_inactive_file") or counters.get("inactive_file") or 0)
        return max(0, used - files) if used is not None else None
    return used


def _cpus(group: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    quota_us, period_us = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    return quota_us / period_us if quota_us is not None and quota_us > 0 and period_us else None


def _used(group: Path, *names: str) -> int | None:
    return next((value for name in names if (value := _number(group / name)) is not None), None)


def _number(file: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(file.read_text(encoding="ascii"))
    return None


def _ours() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/self/cgroup").read_text(encoding="utf-8")
    return ""
