"""Control of one training: takes snapshots, and applies the actions that were decided outside, between two steps.

The outside posts an action for a step in the near future, so that every rank does it at the same one. What was done, or
why it could not be done, goes into the journal.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from holdfast.inside.control.action_queue import ActionQueue, QueuedAction
from holdfast.inside.control.learning_rate import LearningRateFactor
from holdfast.inside.guard.guard import Guard
from holdfast.signals.actions import Action, Refused
from holdfast.signals.journal import Journal
from holdfast.state.background import Helper
from holdfast.state.snapshots import Snapshots

_TO_DISK_FIRST, _TO_DISK_EVERY = 60.0, 300.0  # seconds until a snapshot goes to disk, and between two of them
_OFTEN = os.environ.get("HOLDFAST_SAVE_EVERY", "")  # seconds, instead of both
_ANSWERS_EVERY = 1.0  # seconds between two attempts to write an answer that the journal did not take
Optimizer = torch.optim.Optimizer


class Control:
    """What may be changed in a training: the `RunControl` that a loop offers to policies."""

    def __init__(
        self,
        *,
        run: Path,
        journal: Journal,
        rank: int,
        part: int,
        guard: Guard,
        snapshots: Snapshots,
        micro_batches: Callable[[], Any],
        helper: Helper,
        optimizers: Callable[[], list[Optimizer]],
    ) -> None:
        self.rate, self.snapshots = LearningRateFactor(), snapshots
        self._run, self._journal, self._rank, self._guard = run, journal, rank, guard
        self._micro_batches, self._helper, self._optimizers = micro_batches, helper, optimizers
        self._queue = ActionQueue(run, part)
        self._waiting: list[QueuedAction] = []
        self._unwritten: list[dict[str, Any]] = []
        self._write_at = 0.0
        self._clip_until = 0
        often = float(_OFTEN) if _OFTEN.replace(".", "", 1).isdigit() else None
        self._to_disk_every = _TO_DISK_EVERY if often is None else often
        self._to_disk_at = time.monotonic() - self._to_disk_every + min(self._to_disk_every, _TO_DISK_FIRST)
        self._do: dict[str, Callable[[Action, int], str]] = {
            "roll-back": self._roll_back,
            "lower-lr": self._lower_rate,
            "clip": self._clip,
            "shrink-micro-batch": self._shrink,
            "save-checkpoint": self._save,
            "stop": self._stop,
        }

    def before_update(self, optimizer: Optimizer, step: int) -> None:
        """An update comes: it must see the learning rate that was decided."""
        self.rate.put_on(optimizer, step)

    def after_update(self) -> None:
        """The update is done."""
        self.rate.take_off()

    def between_steps(self, step: int, *, good: bool) -> None:
        """Between two steps, of which `step` comes next: apply what is due, keep a snapshot if it is time."""
        if step >= self._clip_until:
            self._guard.max_norm = math.inf
        self._waiting += self._queue.new_actions()
        due = [queued for queued in self._waiting if step >= queued.at]
        for queued in due:
            self._waiting.remove(queued)
            self._answer(queued, step)
        if self._unwritten and time.monotonic() > self._write_at:
            self._write_answers()
        will_go_back = any(queued.action.kind == "roll-back" for queued in self._waiting)  # to one that must not be given up
        if good and not due and not will_go_back and self.snapshots.due(step):
            self.snapshots.take(step)
            if time.monotonic() - self._to_disk_at > self._to_disk_every:
                self._to_disk_at = time.monotonic()
                self.snapshots.save(self._run / "checkpoints")

    def close(self) -> None:
        """The training is over."""
        self._write_answers()
        self._queue.close()
        self.snapshots.forget()
        self._helper.close()

    def apply(self, action: Action, step: int) -> str:
        """Do it before the update of `step` and say what was done. Raises Refused, in words, if it cannot be done here."""
        if action.kind not in self._do:
            raise Refused(f"there is no action {action.kind}")
        return self._do[action.kind](action, step)

    def _answer(self, queued: QueuedAction, step: int) -> None:
        action = queued.action
        try:
            detail, state = self.apply(action, step), "done"
        except Refused as why:
            detail, state = str(why), "refused"
        except Exception as error:  # noqa: BLE001 - the training goes on, and the journal says what happened
            detail, state = f"{type(error).__name__}: {error}", "refused"
        self._report(queued, state, detail, step)
        if action.kind == "stop" and state == "done":
            self._end(action)

    def _report(self, queued: QueuedAction, state: str, detail: str, step: int) -> None:
        row = {"number": queued.number, "state": state, "at": step, "detail": detail, "rank": self._rank}
        self._unwritten.append({"time": round(time.time(), 3), **queued.action.as_row(), **row})
        self._write_answers()

    def _write_answers(self) -> None:
        """Outside waits for them, and takes a training that never answers for one that cannot."""
        self._write_at = time.monotonic() + _ANSWERS_EVERY
        with contextlib.suppress(OSError):
            while self._unwritten:
                self._journal.write("action", **self._unwritten[0])
                del self._unwritten[0]

    # The actions

    def _roll_back(self, action: Action, step: int) -> str:
        to = action.settings.get("to")
        if to == "disk":
            found = self.snapshots.restore_from_disk(self._run / "checkpoints")
        else:
            snapshot = self.snapshots.at_or_before(int(to)) if to is not None else None
            found = None if snapshot is None else snapshot.step
            if found is not None:
                self.snapshots.restore(found)
                self.snapshots.drop_after(found)
        if found is None:
            raise Refused("no clean snapshot is that old" if to != "disk" else "no clean checkpoint is on disk")
        factor, given = float(action.settings.get("lr_factor", 1.0)), action.settings
        warm_up, regain = int(given.get("warmup_steps", 0)), int(given.get("regain_steps", 0))
        self.rate.lower(factor, step, warm_up_steps=warm_up, regain_steps=regain)
        if (limit := action.settings.get("lr_limit")) is not None:
            self.rate.hold(self._optimizers(), float(limit))
        self._guard.start_again()
        self._clip_until = 0
        return f"restored the state of step {found}; learning rate x {self.rate.factor:g}"

    def _lower_rate(self, action: Action, step: int) -> str:
        self.rate.lower(float(action.settings["factor"]), step, warm_up_steps=int(action.settings.get("warmup_steps", 0)))
        return f"learning rate x {self.rate.factor:g}"

    def _clip(self, action: Action, step: int) -> str:
        if why := self._guard.cannot_clip:
            raise Refused(f"gradients are not clipped here, as {why}; call torch.nn.utils.clip_grad_norm_ in the script")
        self._guard.max_norm = float(action.settings["max_norm"])
        self._clip_until = step + int(action.settings.get("steps", 1000))
        return f"gradient norm kept under {self._guard.max_norm:g} until step {self._clip_until}"

    def _shrink(self, action: Action, step: int) -> str:  # noqa: ARG002 - all actions are called alike
        micro_batches = self._micro_batches()
        if micro_batches is None:
            raise Refused("the loop has no `@run.step` function that could be split; docs/out_of_memory.md shows the two lines")
        parts = int(action.settings.get("parts", 2))
        micro_batches.shrink(parts)
        return f"every batch in {parts} parts"

    def _save(self, action: Action, step: int) -> str:
        self.snapshots.take(step)
        path = self.snapshots.save(self._run / "checkpoints", best=action.settings.get("best"))
        if path is None:
            raise Refused("no clean snapshot to save")
        return f"saving to {path.name}"

    def _stop(self, action: Action, step: int) -> str:
        return f"stopped before step {step}: {action.settings.get('why', action.because)}"

    def _end(self, action: Action) -> None:
        print(f"holdfast: training stopped: {action.settings.get('why', action.because)}", file=sys.stderr, flush=True)
        raise SystemExit(int(action.settings.get("code", 1)))
