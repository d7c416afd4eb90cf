"""`CheckpointStore`: save a training's state atomically, in the background, and resume from the newest clean checkpoint.

    store = holdfast.CheckpointStore("checkpoints", best="val_loss")
    store.restore(model=model, optimizer=optimizer)                                    # None in an empty folder
    store.save(step, model=model, optimizer=optimizer, metrics={"val_loss": loss})     # returns at once

A save that fails is reported (a warning, a finding in the journal, `store.troubles`) and never raised into the training loop.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.checkpoints.manifest import Kept, kept_in
from holdfast.checkpoints.read import verify_checkpoint
from holdfast.checkpoints.write import best_checkpoint
from holdfast.errors import StorageError, UsageError
from holdfast.signals.metric_direction import better
from holdfast.signals.run_folder import RunFolder
from holdfast.state.generators import read_process_generators
from holdfast.state.objects import read_gradients
from holdfast.state.ranks import RankNotes, current_rank, world_size
from holdfast.state.report import SaveReport
from holdfast.state.restore import At, Restored, TrainingParts, restore
from holdfast.state.saver import Retention, Saver
from holdfast.state.training_state import TrainingState

_Rows = list[dict[str, Any]]
_Checkpoints = list[Kept]


class CheckpointStore:
    """Checkpoints of one training in one folder.

    It keeps the last `keep_last`, the last one of every epoch that is a multiple of `every_epochs`, and the best by the metric
    `best`. A save waits for the previous one; `if store.wait(0): store.save(...)` skips it while that is still being written.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep_last: int = 3,
        every_epochs: int | None = 5,
        best: str | None = None,
        lower_is_better: bool | None = None,
        run: RunFolder | None = None,
    ) -> None:
        """`run`: whose journal gets the reports; by default the run recorded in this process."""
        if keep_last < 1:
            raise UsageError(f"keep_last={keep_last} would keep nothing.", fix="use 1 or more")
        if lower_is_better is None:
            lower_is_better = best is not None and better(best) == "lower"
        self.folder = Path(folder).absolute()
        retention = Retention(last=keep_last, every_epochs=every_epochs or None, best=best, lower_is_better=lower_is_better)
        self.report = SaveReport(self.folder, run)
        self.notes = RankNotes(self.folder)
        self._checked = False  # that all objects can be saved
        self._saver = Saver(self.folder, retention=retention, report=self.report, notes=self.notes)

    @property
    def troubles(self) -> _Rows:
        """What failed, as rows: time, code, step and evidence."""
        return [*self.report.rows]

    def save(
        self,
        step: int | None = None,
        *,
        model: Any,
        optimizer: Any = None,
        scheduler: Any = None,
        scaler: Any = None,
        ema: Any = None,
        loader: Any = None,
        epoch: int | None = None,
        metrics: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        gradients: bool = False,
        wait: bool = False,
    ) -> Path | None:
        """Copy the current state, write it in the background, and return the checkpoint's path.

        Each of model, optimizer and so on is one object or a list. `step` defaults to the newest one plus one. Between two
        `backward` calls of one update also save the `gradients`. Returns None if that failed, with
        `wait` also if writing failed.
        """
        try:
            parts = TrainingParts(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, ema=ema, loader=loader)
            state, also = parts.state(), parts.position()
            if not self._checked:
                self._checked = True
                for text in parts.not_saved():
                    self.report.warn(f"{text}. A restore leaves that as it is.", step)
            return self.save_state(
                state, step, epoch=epoch, metrics=metrics, settings=settings, also=also, gradients=gradients, wait=wait
            )
        except Exception as error:  # noqa: BLE001 - training continues
            self.failed(error, step)
            return None

    def failed(self, error: BaseException, step: int | None) -> None:
        """Report a failed save without raising into the training loop."""
        if os.environ.get("HOLDFAST_DEBUG") == "raise":
            raise error
        self.report.failed(error, step)

    def save_state(
        self,
        state: TrainingState,
        step: int | None,
        *,
        epoch: int | None,
        metrics: Mapping[str, Any] | None,
        settings: Mapping[str, Any] | None,
        also: Mapping[str, Any],
        gradients: bool,
        wait: bool,
    ) -> Path | None:
        """Save a prepared state; `also` goes into training.pt. Errors are raised."""
        run, rank = self.report.run, current_rank()
        facts = {
            "epoch": epoch,
            "time": time.time(),
            "metrics": dict(metrics or {}),
            "settings": _as_json(settings or {}),
            "rank": rank,
            "world_size": world_size(),
            "run": str(run.path) if run is not None else None,
            "made_by": self._saver.retention.made_by,
        }
        saver = self._saver
        if rank != 0 and not state.is_sharded():  # all ranks have the same state: rank 0 writes it
            step, path = saver.names.foretell(step)
            own = {name: value for name, value in also.items() if name == "loader"}
            self.notes.leave(step, {**own, "randomness": read_process_generators(state.gpus())})
            return path
        if gradients and state.is_flattened():
            raise StorageError("FullyShardedDataParallel's gradients cannot be saved.", fix="save after optimizer.step()")
        if gradients:
            also = {**also, "gradients": [read_gradients(optimizer) for optimizer in state.optimizers()]}
        job = saver.save(state, step, facts, also)
        if wait:
            job.done.wait()
        return job.path if job.saved or not wait else None

    def restore(
        self,
        *,
        model: Any,
        optimizer: Any = None,
        scheduler: Any = None,
        scaler: Any = None,
        ema: Any = None,
        loader: Any = None,
        at: At = None,
        randomness: bool = True,
    ) -> Restored | None:
        """Restore the checkpoint of a step, a path, "best" or "last"; by default the newest. None in an empty folder.

        Every byte is verified first. A damaged checkpoint is skipped for the newest earlier clean one.
        Raises CannotRestore, with nothing changed, if none is usable or the model differs.
        """
        self.wait()
        parts = TrainingParts(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, ema=ema, loader=loader)
        result = restore(self.folder, at, parts.state, parts.select, notes=self.notes, randomness=randomness)
        if result is None:
            return None
        restored, saved = result
        parts.set_position(saved.position)
        unused = [name for name in restored.unused if name != "loader"]
        if optimizer is not None and unused:
            self.report.warn(
                f"{restored.path} also holds the state of {', '.join(unused)}, which was not restored. "
                f"To restore that too: store.restore(model=..., {unused[0]}={unused[0]}).",
                restored.step,
            )
        what = [name for name in ("optimizer", "scheduler", "scaler") if getattr(parts, name) is not None]
        self.report.resumed(restored.path, restored.step, what, restored.skipped)
        return restored

    def list(self) -> _Checkpoints:
        """The complete checkpoints, oldest first."""
        return kept_in(self.folder)

    def newest_clean(self) -> Path | None:
        """The newest checkpoint that passes verification."""
        return next((kept.path for kept in reversed(self.list()) if is_clean(kept.path)), None)

    def best(self) -> Path | None:
        """The best checkpoint so far."""
        return best_checkpoint(self.folder)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the save in progress; False after `timeout` seconds."""
        return self._saver.wait(timeout)

    def close(self) -> None:
        """Finish the save in progress and release the memory."""
        self._saver.close()

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<checkpoints in {self.folder}>"


def _as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for JSON; other values become strings."""
    try:
        return dict(json.loads(json.dumps(dict(settings), default=str), parse_constant=str))
    except (TypeError, ValueError, RecursionError):
        return {str(name): str(value) for name, value in settings.items()}


def is_clean(path: Path) -> bool:
    """Whether a checkpoint passes verification."""
    try:
        verify_checkpoint(path)
    except StorageError:
        return False
    return True
