"""The kernel's counters of kills for memory, of both versions of control groups."""

from __future__ import annotations

from pathlib import Path

from every_case import every_case

from holdfast.supervisor.memory_events import MemoryEvents


@every_case(
    ("cgroups", "file"),
    [
        ("0::/user/job\n", "user/job/memory.events"),
        ("4:memory:/job\n1:cpu:/\n0::/\n", "memory/job/memory.oom_control"),
    ],
)
def test_kills_are_counted_since_the_beginning(tmp_path: Path, cgroups: str, file: str) -> None:
    counter = tmp_path / file
    counter.parent.mkdir(parents=True)
    counter.write_text("low 0\noom_kill 3\nunder_oom 0\n")
    events = MemoryEvents(cgroups, tmp_path)
    assert events.killed() == 0
    counter.write_text("low 0\noom_kill 5\nunder_oom 0\n")
    assert events.killed() == 2


def test_without_counters_nothing_is_claimed(tmp_path: Path) -> None:
    assert MemoryEvents("", tmp_path).killed() is None and MemoryEvents("0::/x", tmp_path).limit() is None
