"""Tell what became of a save: a row in the journal of the run, if one is open, and one warning when saving begins to fail."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import DiskFull, HoldfastError
from holdfast.inside.ranks import current_rank
from holdfast.signals.journal import Journal
from holdfast.signals.run_folder import RunFolder

if TYPE_CHECKING:
    from holdfast.inside.arm import Armed
    from holdfast.inside.saving.given import Given
    from holdfast.inside.saving.restored import Restored
    from holdfast.inside.session import Session

_DEGRADED = "holdfast-degraded"  # not about the save itself
_REMEMBERED = 100  # rows
_TOLD_EACH = 3  # after so many in a row, only every doubling of their number is told


class Telling:
    """Keeps the rows of what failed, and passes them on."""

    def __init__(self, folder: Path, run: RunFolder | None = None, *, warns: bool = True) -> None:
        self._warns = warns
        self.rows: deque[dict[str, Any]] = deque(maxlen=_REMEMBERED)
        self._folder, self._run = folder, run
        self._in_a_row: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def run(self) -> RunFolder | None:
        """The run that this belongs to: the one that was named, or the one that is being recorded in this process."""
        session = open_session()
        return self._run or (session.scopes[0].run if session is not None else None)

    def saved(self, path: Path, step: int, **facts: Any) -> None:
        """A checkpoint is whole and was read back."""
        self._in_a_row = {code: count for code, count in self._in_a_row.items() if code == _DEGRADED}
        self._write("checkpoint", event="saved", path=str(path.absolute()), step=step, **facts)

    def restored(self, restored: Restored, given: Given) -> None:
        """A training goes on from a checkpoint; what is recorded of it begins there."""
        unused = [what for what in restored.unused if what != "loader"]
        if given.optimizer is not None and unused:
            _warn(
                f"holdfast: {restored.path} also holds the state of {', '.join(unused)}, for which nothing was given: it goes on "
                f"as it is. To restore it too: store.restore(model=..., {unused[0]}={unused[0]}).",
                restored.step,
            )
        self.goes_on(restored, {what for what in ("optimizer", "scheduler", "scaler") if getattr(given, what) is not None})

    def goes_on(self, restored: Restored, what: Iterable[str]) -> None:
        """Say from where a training goes on, and what of it was put back."""
        for words in restored.skipped:
            _warn(f"holdfast: passed over: {words}", restored.step)
        about = dict.fromkeys(what, "loaded")
        origin = {"path": str(restored.path.absolute()), "by": "script" if "optimizer" in about else "store", **about}
        session = open_session()
        if session is not None:
            session.state_loaded()
            for scope in session.scopes:
                scope.origin = origin
        self._write("checkpoint", event="loaded", path=origin["path"], step=restored.step, skipped=restored.skipped)

    def failed(self, error: BaseException, step: int | None, *, code: str | None = None, **evidence: Any) -> None:
        """A save did not come about; the training goes on."""
        code = code or ("disk-full" if isinstance(error, DiskFull) else "checkpoint-not-saved")
        with self._lock:
            count = self._in_a_row[code] = self._in_a_row.get(code, 0) + 1
        words = error.problem if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
        evidence = {"folder": str(self._folder), "error": words, **evidence, "in_a_row": count}
        row = {"code": code, "severity": "critical", "step": step, "evidence": evidence}
        self.rows.append({"time": time.time(), **row})
        if count <= _TOLD_EACH or count & (count - 1) == 0:
            self._write("finding", **row)
        if count == 1 and self._warns:
            fix = f" To mend it: {error.fix}." if isinstance(error, HoldfastError) else ""
            _warn(f"holdfast: {words}{fix} Training goes on; the checkpoints that were there stay.", step)

    def not_kept(self, words: str, step: int | None) -> None:
        """Something is not in the checkpoints, and will not be restored."""
        _warn(f"holdfast: {words}. When the training is restored, that stays as it is.", step)

    def _write(self, kind: str, **fields: Any) -> None:
        run = self.run
        if run is not None:
            with contextlib.suppress(OSError):
                Journal(run.path / "journal.jsonl").write(kind, rank=current_rank(), **fields)


def open_session() -> Session | None:
    """What is being recorded in this process, if anything is."""
    arm: Any = sys.modules.get("holdfast.inside.arm")
    armed: Armed | None = getattr(arm, "_armed", None)
    return armed.session if armed is not None and armed.session.scopes else None


def _warn(words: str, step: int | None) -> None:
    """Warn as if from a place that is named for the step: the line that is running now is ours, in another thread."""
    with contextlib.suppress(Warning):  # where warnings are errors, they are not errors of the training
        warnings.warn_explicit(words, UserWarning, "holdfast", step or 0)
