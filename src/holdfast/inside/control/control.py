"""Control of one training: takes snapshots, and applies the supervisor's queued actions at step boundaries.

The supervisor queues an action for a step soon to come, so that every rank applies it at the same step. The journal gets what
was done, or why it could not be done.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from holdfast.checkpoints.manifest import kept_in
from holdfast.errors import CannotRestore
from holdfast.inside.control.settings import LearningRateFactor, Settings
from holdfast.inside.guard.guard import Guard
from holdfast.inside.observers.heartbeat import HEARTBEAT
from holdfast.inside.trainer_link import TrainerLink
from holdfast.signals.action_queue import ActionQueue, QueuedAction
from holdfast.signals.actions import Action, Refused
from holdfast.signals.pulse import SAVING
from holdfast.signals.recorder import Recorder
from holdfast.state.background import BackgroundThread
from holdfast.state.snapshots import Snapshots

_SAVE_FRACTION, _SAVE_BYTES = 0.1, 16 << 20  # of the run's time, that a crash may cost; a second, that are written to disk
_SOONEST_SAVE, _FIRST_SAVE, _SAVE_EVERY = 2.0, 60.0, 300.0  # seconds: at least; at most for the first save; for the others
_OPENING_SAVE, _OPENING_FRACTION = 0.5, 0.5  # before that: the first save, and the part of so young a run that a crash may cost
_SAVE_EVERY_SET = os.environ.get("HOLDFAST_SAVE_EVERY", "")  # seconds, replaces all of them
_LAST_SAVE = 3600.0  # seconds for the save before a stop: the scheduler decides how long it may take
_RETRY_EVERY = 1.0  # seconds between two attempts to write a row that the journal did not take
Optimizer = torch.optim.Optimizer


class Control:
    """Applies actions to one training."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        guard: Guard,
        snapshots: Snapshots,
        micro_batches: Callable[[], Any],
        helper: BackgroundThread,
        settings: Callable[[], Settings],
        optimizers: Callable[[], list[Optimizer]],
        trainer: TrainerLink,
    ) -> None:
        self._settings, self.snapshots, self._trainer = settings, snapshots, trainer
        self._run, self._rank, self._guard = recorder.run, recorder.recording.rank, guard
        self._checkpoints = recorder.checkpoints
        self._micro_batches, self._helper, self._optimizers = micro_batches, helper, optimizers
        self._queue = ActionQueue(recorder.run.path, recorder.recording.part)
        self._pending: list[QueuedAction] = []
        self._unwritten: list[dict[str, Any]] = []
        self._retry_at = 0.0
        self._clip_until = 0
        self._restored = -1  # the step of the last roll-back's state
        self._save_every = float(_SAVE_EVERY_SET) if _SAVE_EVERY_SET.replace(".", "", 1).isdigit() else None
        self._began = self._saved_at = time.monotonic()
        self._handlers: dict[str, Callable[[Action, int], str]] = {
            "roll-back": self._roll_back,
            "lower-lr": self._lower_lr,
            "clip": self._clip,
            "shrink-micro-batch": self._shrink,
            "save-checkpoint": self._save,
            "stop": self._stop,
        }

    @property
    def lr(self) -> LearningRateFactor:
        """The learning rate factor of repairs."""
        return self._settings().lr

    def between_steps(self, step: int, *, good: bool) -> None:
        """Apply what is due before `step`, and take a snapshot if one is due."""
        if step >= self._clip_until:
            self._guard.max_norm = math.inf
        if new := self._queue.new_actions():
            self._pending += new
        due = [queued for queued in self._pending if step >= queued.at] if self._pending else ()
        for queued in due:
            self._pending.remove(queued)
            self._apply_queued(queued, step)
        if self._unwritten and time.monotonic() > self._retry_at:
            self._write_rows()
        if not good or due or not self.snapshots.due(step):
            return
        if not any(queued.action.kind == "roll-back" for queued in self._pending):  # its snapshot must stay
            self.snapshots.take(step)
            self._save_if_due(time.monotonic())

    def _save_if_due(self, now: float) -> None:
        if (seconds := self._save_every) is None:
            latest = _FIRST_SAVE if self._saved_at == self._began else _SAVE_EVERY
            soonest = seconds_between_saves(now - self._began, self.snapshots.size)
            seconds = min(latest, soonest) if self.snapshots.alone else latest  # clocks of ranks would disagree too often
        if now - self._saved_at > seconds:
            self._saved_at = now
            self.snapshots.save(self._checkpoints)

    def close(self) -> None:
        """Release everything at the end of the training."""
        self._write_rows()
        self._queue.close()
        self.snapshots.forget()
        self._helper.close()

    def thin(self) -> None:
        """The training is over and the script goes on: its last state is enough."""
        self.snapshots.keep_newest(self._checkpoints)

    def apply(self, action: Action, step: int) -> str:
        """Apply an action before the update of `step`; returns what was done. Raises Refused."""
        if action.kind not in self._handlers:
            raise Refused(f"there is no action {action.kind}")
        return self._handlers[action.kind](action, step)

    def _apply_queued(self, queued: QueuedAction, step: int) -> None:
        action = queued.action
        try:
            detail, state = self.apply(action, step), "done"
        except Refused as reason:
            detail, state = str(reason), "refused"
        except Exception as error:  # noqa: BLE001 - the training continues, and the journal has the error
            detail, state = f"{type(error).__name__}: {error}", "refused"
        row: dict[str, Any] = {"number": queued.number, "state": state, "at": step, "detail": detail, "rank": self._rank}
        if action.kind == "roll-back" and state == "done":
            row["to"] = self._restored
            if isinstance(action.settings.get("to"), int):
                row["settings"] = {**action.settings, "to": self._restored}  # it may have been newer than what was asked for
        self._unwritten.append({"time": round(time.time(), 3), **action.as_row(), **row})
        self._write_rows()
        if action.kind == "stop" and state == "done":
            print(f"holdfast: training stopped: {_reason(action)}", file=sys.stderr, flush=True)
            code = int(action.settings.get("code", 1))
            if self._trainer.stop is None:
                raise SystemExit(0 if action.settings.get("save") else code)  # no failure: torchrun would report one
            self._trainer.stop(str(_reason(action)), code)

    def _write_rows(self) -> None:
        """Write the outcomes to the journal; the supervisor gives up on a training that never reports one."""
        self._retry_at = time.monotonic() + _RETRY_EVERY
        with contextlib.suppress(OSError):
            while self._unwritten:
                self._run.journal.write("action", **self._unwritten[0])
                del self._unwritten[0]

    # The actions

    def _roll_back(self, action: Action, step: int) -> str:
        settings = action.settings
        restored = self._restored = self._restore(settings.get("to"), settings.get("before"))
        warmup, regain = int(settings.get("warmup_steps", 0)), int(settings.get("regain_steps", 0))
        self.lr.lower(float(settings.get("lr_factor", 1.0)), step, warmup_steps=warmup, regain_steps=regain)
        if (max_lr := settings.get("lr_limit")) is not None:
            self.lr.limit(self._optimizers(), float(max_lr), has_jumped=restored == settings.get("before"))
        self._guard.start_again()
        self._clip_until = 0
        return f"restored the state of step {restored}; learning rate x {self.lr.factor:g}"

    def _restore(self, to: Any, before: int | None) -> int:
        """Restore a snapshot up to step `to`, or on "disk" the newest clean one up to `before`, else of all; returns its step.

        A checkpoint on disk up to `before` that is newer than the snapshot loses less. Ranks might not agree on it.
        """
        if to == "disk":
            step = self.snapshots.restore_from_disk(self._checkpoints, at_or_before=before)
            if step is None and before is not None:
                step = self.snapshots.restore_from_disk(self._checkpoints)
            if step is None:
                raise Refused("no clean checkpoint is on disk")
            return step
        snapshot = self.snapshots.at_or_before(int(to)) if to is not None else None
        if snapshot is None:
            raise Refused("no clean snapshot is that old")
        step = self._restore_newer(snapshot.step, before) if before is not None and self.snapshots.alone else None
        if step is None:
            self.snapshots.restore(step := snapshot.step)
        self.snapshots.drop_after(step)
        return step

    def _restore_newer(self, than: int, before: int) -> int | None:
        if not any(than < kept.step <= before for kept in kept_in(self._checkpoints)):
            return None
        try:
            step = self.snapshots.restore_from_disk(self._checkpoints, at_or_before=before)
        except CannotRestore:
            return None
        return step if step is not None and step > than else None

    def _lower_lr(self, action: Action, step: int) -> str:
        self.lr.lower(float(action.settings["factor"]), step, warmup_steps=int(action.settings.get("warmup_steps", 0)))
        return f"learning rate x {self.lr.factor:g}"

    def _clip(self, action: Action, step: int) -> str:
        if reason := self._guard.cannot_clip:
            raise Refused(f"gradients cannot be clipped here: {reason}; call torch.nn.utils.clip_grad_norm_ in the script")
        self._guard.max_norm = float(action.settings["max_norm"])
        self._clip_until = step + int(action.settings.get("steps", 1000))
        return f"gradient norm clipped to {self._guard.max_norm:g} until step {self._clip_until}"

    def _shrink(self, action: Action, _step: int) -> str:
        micro_batches = self._micro_batches()
        if micro_batches is None:
            raise Refused("the loop has no `@run.step` function to split; docs/run.md shows the two lines")
        parts = int(action.settings.get("parts", 2))
        micro_batches.shrink(parts)
        return f"every batch in {parts} parts"

    def _save(self, action: Action, step: int) -> str:
        if self._trainer.save is not None:
            self._trainer.save()
        taken = self.snapshots.take(step)  # not where all copies are still being written
        path = self.snapshots.save(self._checkpoints, best=action.settings.get("best") if taken else None)
        if path is None:
            raise Refused("there is no clean snapshot to save")
        return f"saving to {path.name}" if taken else f"saving the newest copy, to {path.name}: this step could not be copied"

    def _stop(self, action: Action, step: int) -> str:
        saved = self._save_last(step) if action.settings.get("save") else ""
        return f"stopped before step {step}: {_reason(action)}{saved}"

    def _save_last(self, step: int) -> str:
        """Save all that a later start resumes from, and wait until it is on disk; stops without it if that fails."""
        with HEARTBEAT.during(SAVING):
            self._helper.close(_LAST_SAVE)  # memory for snapshots may be being allocated
            own = self._trainer.save or self._trainer.save_run
            try:
                if own is not None:
                    own()
                self.snapshots.take(step)
                path = self.snapshots.save(self._checkpoints)
            except Exception as error:  # noqa: BLE001 - it stops all the same, and an earlier checkpoint is used
                return f"; saving failed: {type(error).__name__}: {error}"
            self._helper.close(_LAST_SAVE)
        return f"; saved {path.name}" if path is not None else "; there was no clean state to save"


def seconds_between_saves(age: float, size: int) -> float:
    """Seconds until the next state is saved, so that a crash costs a small part of the run's `age`, and little is written."""
    soonest = min(_SOONEST_SAVE, max(_OPENING_SAVE, _OPENING_FRACTION * age))
    return max(soonest, _SAVE_FRACTION * age, size / _SAVE_BYTES)


def _reason(action: Action) -> Any:
    return action.settings.get("why", action.because)
