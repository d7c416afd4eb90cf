"""What links a run to the trainer around it: stop and save through the trainer's own API, checkpoints that the trainer wrote."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.inside.ranks import current_rank
from holdfast.signals.run_folder import RunFolder
from holdfast.state.background import BackgroundThread

_TENSORS_IN_FINDING = 5


class TrainerLink:
    """The trainer of one run, as far as it has one; `place` gives the step and the recording of the training in progress."""

    def __init__(
        self, run: RunFolder, *, place: Callable[[], dict[str, Any]], on_error: Callable[[str, BaseException], None]
    ) -> None:
        self._run, self._place = run, place
        self.stop: Callable[[str, int], object] | None = None  # takes the reason and the exit code
        self.save: Callable[[], object] | None = None
        self.save_run: Callable[[], object] | None = None  # where the script itself uses `run.save()` or `run.restore()`
        self._verifying = BackgroundThread("holdfast-verifying", on_error=on_error)

    def wrote(self, path: Path, step: int | None, *, is_listed: bool) -> None:
        """List a checkpoint that the trainer has written, unless the save itself was seen, and verify it in the background."""
        path, place = path.absolute(), {**self._place(), **({} if step is None else {"step": step})}
        with contextlib.suppress(OSError):
            if not is_listed:
                self._run.journal.write("checkpoint", event="saved", path=str(path), by="trainer", rank=current_rank(), **place)
        as_written = _stamp(path)
        self._verifying.submit(lambda: self._verify(path, place["step"], as_written))

    def _verify(self, path: Path, step: int, as_written: list[tuple[str, int, int]]) -> None:
        from holdfast.checkpoints.clean import verified

        verdict, problem = verified(path)
        if not as_written or _stamp(path) != as_written:  # deleted or overwritten meanwhile: a later one is verified
            return
        if problem is None:
            self._run.journal.write("checkpoint", event="verified", path=str(path), step=step)
            return
        bad = verdict.bad if verdict is not None else []
        tensors = [{"name": tensor.name, "nan": tensor.nan, "inf": tensor.inf} for tensor in bad[:_TENSORS_IN_FINDING]]
        code = "checkpoint-non-finite" if bad else "checkpoint-torn"
        evidence = {"path": str(path), "why": problem, **({"tensors": tensors, "bad_tensors": len(bad)} if bad else {})}
        self._run.journal.write("finding", code=code, severity="critical", step=step, evidence=evidence)

    def close(self) -> None:
        """Finish verifying, for a few seconds at most."""
        self._verifying.close()


def _stamp(path: Path) -> list[tuple[str, int, int]]:
    """What changes when a file, or a file in a folder, is written again; empty if it is gone."""
    with contextlib.suppress(OSError):
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        return [(file.name, (found := file.stat()).st_size, found.st_mtime_ns) for file in files]
    return []
