"""Whether a run hangs for good: then a drill need not wait for its time limit."""

from __future__ import annotations

import contextlib
import struct
import time
from pathlib import Path

from holdfast.probe.journal import JournalReader

_FINDINGS = ("hang", "loader-stall", "collective-stall")
_STILL = 20.0  # seconds without a step after the report: a stall can recover
_LOOK = 1.0


class HangWatch:
    """Watches for a reported hang after which no step came. `unattended`: nobody will end it and start it again."""

    def __init__(self, run: Path, drill: Path, *, unattended: bool) -> None:
        self._journal, self._drill, self._by_itself = JournalReader(run / "journal.jsonl"), drill, unattended
        self._reported, self._looked = False, 0.0
        self._steps, self._since = 0, time.monotonic()

    def is_permanent(self) -> bool:
        """Whether it hangs, and will. Looks at most once a second."""
        now = time.monotonic()
        if not self._by_itself or now - self._looked < _LOOK:
            return False
        self._looked = now
        if (steps := counted(self._drill)) != self._steps:
            self._steps, self._since = steps, now
        for row in self._journal.new_rows():
            if row.get("code") in _FINDINGS and row.get("severity") != "info" and not self._reported:
                self._reported, self._since = True, max(self._since, now)
        return self._reported and now - self._since > _STILL


def counted(drill: Path) -> int:
    """Steps that the injector has counted in the first rank of the newest process."""
    with contextlib.suppress(OSError, struct.error):
        return int(struct.unpack_from("<q", (drill / "step-0").read_bytes())[0])
    return 0
