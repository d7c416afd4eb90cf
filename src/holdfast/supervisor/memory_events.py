"""Whether the kernel has killed for memory: the counters of the control group, read before and after."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


class MemoryEvents:
    """How often the kernel has killed a process in our control group and those below it, since this was made."""

    def __init__(self, cgroups: str | None = None, root: Path = _ROOT) -> None:
        self._files = counters(cgroups if cgroups is not None else _ours(), root)
        self._before = self._count()

    def killed(self) -> int | None:
        """Processes killed for memory since; None where the kernel does not tell."""
        return max(0, self._count() - self._before) if self._files else None

    def limit(self) -> int | None:
        """The limit of the group in bytes, if it has one."""
        for file in self._files:
            for name in ("memory.max", "memory.limit_in_bytes"):
                with contextlib.suppress(OSError, ValueError):
                    value = int(file.with_name(name).read_text(encoding="ascii"))
                    return value if value < 1 << 60 else None
        return None

    def _count(self) -> int:
        total = 0
        for file in self._files:
            with contextlib.suppress(OSError):
                match = re.search(r"^oom_kill (\d+)$", file.read_text(encoding="ascii"), re.MULTILINE)
                total = max(total, int(match[1])) if match else total
        return total


def counters(cgroups: str, root: Path) -> list[Path]:
    """The files with the counters, of version 2 and version 1, by what /proc/self/cgroup says."""
    files = []
    for line in cgroups.splitlines():
        _, kinds, path = (*line.split(":", 2), "", "")[:3]
        inside = path.lstrip("/")
        if kinds == "":
            files += [root / inside / "memory.events", root / "unified" / inside / "memory.events"]
        elif "memory" in kinds.split(","):
            files += [root / "memory" / inside / "memory.oom_control", root / "memory" / "memory.oom_control"]
    return [file for file in files if file.exists()]


def _ours() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/self/cgroup").read_text(encoding="utf-8")
    return ""
