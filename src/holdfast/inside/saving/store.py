"""`CheckpointStore`: save the state of a training whole or not at all, behind its back, and go on from the newest clean one.

    store = holdfast.CheckpointStore("checkpoints", best="val_loss")
    store.restore(model=model, optimizer=optimizer)                                    # None in an empty folder
    store.save(step, model=model, optimizer=optimizer, metrics={"val_loss": loss})     # returns at once

A save that fails is told (a warning, a finding in the journal, `store.troubles`) and never raised into the training loop.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from holdfast.checkpoints.manifest import Kept, kept_in
from holdfast.checkpoints.read import verify_checkpoint
from holdfast.checkpoints.write import best_checkpoint
from holdfast.errors import StorageError, UsageError
from holdfast.inside.ranks import current_rank, world_size
from holdfast.inside.saving.board import Board
from holdfast.inside.saving.fsdp1 import by_name
from holdfast.inside.saving.given import Given
from holdfast.inside.saving.gradients import read_gradients
from holdfast.inside.saving.restored import At, Restored, restore
from holdfast.inside.saving.saver import Keeping, Saver
from holdfast.inside.saving.telling import Telling
from holdfast.inside.snapshots.randomness import read_randomness
from holdfast.inside.snapshots.state import TrainingState
from holdfast.signals.metric_direction import better
from holdfast.signals.run_folder import RunFolder

_Rows = list[dict[str, Any]]
_Checkpoints = list[Kept]


class CheckpointStore:
    """Checkpoints of one training in one folder.

    Kept are the last `keep_last`, the last one of every epoch that is a multiple of `every_epochs`, and the best by the metric
    named `best`. With `busy="drop"` a save is left out while the one before it is still being written, instead of waiting for it.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep_last: int = 3,
        every_epochs: int | None = 5,
        best: str | None = None,
        lower_is_better: bool | None = None,
        busy: Literal["wait", "drop"] = "wait",
        run: RunFolder | None = None,
    ) -> None:
        """`run` is the run whose journal is told; the one that is recorded in this process if none is named."""
        if keep_last < 1:
            raise UsageError(f"keep_last={keep_last} would keep nothing.", fix="use 1 or more")
        if busy not in ("wait", "drop"):
            raise UsageError(f"there is no busy={busy!r}.", fix="use 'wait' or 'drop'")
        if lower_is_better is None:
            lower_is_better = best is not None and better(best) == "lower"
        self.folder = Path(folder).absolute()
        keeping = Keeping(last=keep_last, every_epochs=every_epochs or None, best=best, lower_is_better=lower_is_better)
        self._telling = Telling(self.folder, run)
        self._looked_at = False  # whether something is given that cannot be kept
        self._saver = Saver(self.folder, keeping=keeping, telling=self._telling, drop=busy == "drop")
        self._board = self._saver.board = Board(self.folder)

    @property
    def troubles(self) -> _Rows:
        """What failed, as rows: time, code, step and evidence."""
        return [*self._telling.rows]

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
        """Save the state as it is now, and return where it will be; the rest happens behind the training's back.

        Each of model, optimizer and so on is one thing or a list. Without `step` it is one more than that of the newest. Between
        two `backward` calls of one update ask for the `gradients` too. None is returned if nothing will be saved, and with `wait`
        if nothing was.
        """
        try:
            given = Given(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, ema=ema, loader=loader)
            state, also = given.state(), given.position()
            if not self._looked_at:
                self._looked_at = True
                for words in given.not_kept():
                    self._telling.not_kept(words, step)
            if gradients:
                also["gradients"] = read_gradients(state.optimizers())
            return self.save_state(state, step, epoch=epoch, metrics=metrics, settings=settings, also=also, wait=wait)
        except Exception as error:  # noqa: BLE001 - the training goes on
            self.failed(error, step)
            return None

    def failed(self, error: BaseException, step: int | None) -> None:
        """A save did not come about: tell it, and do not raise it into the training loop."""
        if os.environ.get("HOLDFAST_DEBUG") == "raise":
            raise error
        self._telling.failed(error, step)

    def save_state(
        self,
        state: TrainingState,
        step: int | None,
        *,
        epoch: int | None,
        metrics: Mapping[str, Any] | None,
        settings: Mapping[str, Any] | None,
        also: Mapping[str, Any],
        wait: bool,
    ) -> Path | None:
        """Save a state that was put together elsewhere; `also` goes into training.pt. What fails here is raised."""
        run, rank = self._telling.run, current_rank()
        facts = {
            "epoch": epoch,
            "time": time.time(),
            "metrics": dict(metrics or {}),
            "settings": _plain(settings or {}),
            "rank": rank,
            "world_size": world_size(),
            "run": str(run.path) if run is not None else None,
            "made_by": self._saver.keeping.made_by,
        }
        saver, state = self._saver_for(state), by_name(state)
        if rank != 0 and not state.is_sharded():  # every rank has the same: rank 0 writes it
            step, path = saver.names.foretell(step)
            own = {name: value for name, value in also.items() if name == "loader"}
            self._board.leave(step, {**own, "randomness": read_randomness(state.gpus())})
            return path
        job = saver.save(state, step, facts, also)
        if job is not None and wait:
            job.done.wait()
            return job.path if job.saved else None
        return job.path if job is not None else None

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
        """Make the training what it was: at a step, a path, "best" or "last", or by default the newest. None in an empty folder.

        Every byte is compared with the manifest first. One that is damaged is passed over for the newest earlier clean one.
        Raises CannotRestore, with nothing changed, if none can be used or the model is another one.
        """
        self.wait()
        given = Given(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, ema=ema, loader=loader)
        restored = restore(self.folder, given, at, randomness=randomness, board=self._board)
        if restored is not None:
            self._telling.restored(restored, given)
            state = given.state()
            if optimizer is not None and (current_rank() == 0 or state.is_sharded()):
                self._saver_for(state).make_ready(by_name(state))
        return restored

    def goes_on(self, restored: Restored, what: Iterable[str]) -> None:
        """Tell that a training goes on from a checkpoint that was put back elsewhere."""
        self._telling.goes_on(restored, what)

    def _saver_for(self, state: TrainingState) -> Saver:
        """Who saves such a state: of a sharded one every rank its part."""
        if state.is_sharded():
            from holdfast.inside.saving.sharded_saver import ShardedSaver

            if not isinstance(self._saver, ShardedSaver):
                self._saver.close()
                self._saver = ShardedSaver(self.folder, keeping=self._saver.keeping, telling=self._telling)
        return self._saver

    def list(self) -> _Checkpoints:
        """The whole checkpoints, the oldest first."""
        return kept_in(self.folder)

    def newest_clean(self) -> Path | None:
        """The newest checkpoint of which every byte is as it was written."""
        return next((kept.path for kept in reversed(self.list()) if _is_clean(kept.path)), None)

    def best(self) -> Path | None:
        """The best one so far."""
        return best_checkpoint(self.folder)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the save under way is done; False if that takes longer than `timeout` seconds."""
        return self._saver.wait(timeout)

    def close(self) -> None:
        """Finish the save under way and give the memory back."""
        self._saver.close()

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<checkpoints in {self.folder}>"


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON holds them; what it cannot hold becomes words."""
    try:
        return dict(json.loads(json.dumps(dict(settings), default=str), parse_constant=str))
    except (TypeError, ValueError, RecursionError):
        return {str(name): str(value) for name, value in settings.items()}


def _is_clean(path: Path) -> bool:
    try:
        verify_checkpoint(path)
    except StorageError:
        return False
    return True
