"""Report the outcome of saves: a row in the run's journal, and one warning when saving starts to fail."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from holdfast.errors import DiskFull, HoldfastError
from holdfast.signals.journal import Journal
from holdfast.signals.run_folder import RunFolder
from holdfast.state.ranks import current_rank

_DEGRADED = "holdfast-degraded"  # not about the save itself
_MAX_ROWS = 100
_ALL_UP_TO = 3  # failures in a row that are all written; after that numbers 4, 8, 16, …


class Recorder(Protocol):
    """The part of the process's recorder that saving and restoring use."""

    def recorded_run(self) -> RunFolder | None:
        """The run that is being recorded, if one is."""

    def state_loaded(self, origin: Mapping[str, str]) -> None:
        """A training resumes from a checkpoint."""

    def while_saving(self) -> AbstractContextManager[None]:
        """Mark that the training thread waits for a save."""


recorder: Recorder | None = None  # None in a process that only uses the store


def while_saving() -> AbstractContextManager[None]:
    """Tell the recorder that the training thread waits for a save."""
    return recorder.while_saving() if recorder is not None else contextlib.nullcontext()


class SaveReport:
    """Collects failed saves, and writes them to the journal of `run`, or of the run being recorded."""

    def __init__(
        self, folder: Path, run: RunFolder | None = None, *, warns: bool = True, place: Mapping[str, Any] | None = None
    ) -> None:
        """`place` tells in each row of the journal whose saves they are."""
        self._warns, self._place = warns, place or {}
        self.rows: deque[dict[str, Any]] = deque(maxlen=_MAX_ROWS)
        self._folder, self._run = folder, run
        self._in_a_row: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def run(self) -> RunFolder | None:
        """The run that the saves belong to."""
        return self._run or (recorder.recorded_run() if recorder is not None else None)

    def saved(self, path: Path, step: int, **facts: Any) -> None:
        """Report a checkpoint that is complete and verified."""
        self._in_a_row = {code: count for code, count in self._in_a_row.items() if code == _DEGRADED}
        self._write("checkpoint", event="saved", path=str(path.absolute()), step=step, **facts)

    def resumed(self, path: Path, step: int, restored: list[str], skipped: list[str]) -> None:
        """Report a resume: which of optimizer, scheduler and scaler were restored, what was skipped."""
        for text in skipped:
            self.warn(f"skipped: {text}", step)
        loaded = dict.fromkeys(restored, "loaded")
        origin = {"path": str(path.absolute()), "by": "script" if "optimizer" in loaded else "store", **loaded}
        if recorder is not None:
            recorder.state_loaded(origin)
        self._write("checkpoint", event="loaded", path=origin["path"], step=step, skipped=skipped)

    def failed(self, error: BaseException, step: int | None, *, code: str | None = None, **evidence: Any) -> None:
        """Report a failed save; training continues."""
        code = code or ("disk-full" if isinstance(error, DiskFull) else "checkpoint-not-saved")
        with self._lock:
            count = self._in_a_row[code] = self._in_a_row.get(code, 0) + 1
        text = error.problem if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
        evidence = {"folder": str(self._folder), "error": text, **evidence, "in_a_row": count}
        row = {"code": code, "severity": "critical", "step": step, "evidence": evidence}
        self.rows.append({"time": time.time(), **row})
        if count <= _ALL_UP_TO or count & (count - 1) == 0:
            self._write("finding", **row)
        if count == 1 and self._warns:
            fix = f" To fix it: {error.fix}." if isinstance(error, HoldfastError) else ""
            self.warn(f"{text}{fix} Training continues; earlier checkpoints are kept.", step)

    def warn(self, text: str, step: int | None) -> None:
        """Warn with the step as line number: the running line is Holdfast's own, in another thread."""
        with contextlib.suppress(Warning):  # with warnings as errors, the training still continues
            warnings.warn_explicit(f"holdfast: {text}", UserWarning, "holdfast", step or 0)

    def _write(self, kind: str, **fields: Any) -> None:
        run = self.run
        if run is not None:
            with contextlib.suppress(OSError):
                Journal(run.path / "journal.jsonl").write(kind, rank=current_rank(), **self._place, **fields)
