"""A script that knows nothing of resuming is started again: bring it to where it was, with its own loop and its own counters.

The state that was kept is put back at the first step. Then the script goes through its loop as it always does, but nothing is
computed backwards and no update is made, until its loop is at the step of that state; there it is put back once more, with the
random generators, and the training goes on as if nothing had happened: as many steps in all, in the order of the script's loop.

It costs about the forward passes of the steps that were done. What the script prints, evaluates or saves meanwhile is that of the
state that was kept, so no good checkpoint of its own is overwritten by a worse one.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from holdfast.errors import HoldfastError
from holdfast.inside.control.restarted import restarted
from holdfast.inside.guard.skipping import SkippedUpdate
from holdfast.inside.members import parameters_of
from holdfast.inside.observers.heartbeat import HEARTBEAT
from holdfast.inside.ranks import world_size
from holdfast.signals.pulse import CATCHING_UP, TRAINING

if TYPE_CHECKING:
    from holdfast.inside.control.control import Control
    from holdfast.inside.scope import Scope
    from holdfast.inside.taps.loads import Loads
    from holdfast.inside.training import Training

Optimizer = torch.optim.Optimizer


def start_fast_forward(loads: Loads, scope: Scope, training: Training, optimizer: Optimizer) -> FastForward | None:
    """Begin to catch up, where the script was started again, has loaded nothing itself, and a state was kept."""
    restart, control = restarted(), training.control
    if (
        restart is None
        or not restart.kept
        or not restart.kept_step
        or control is None
        or training.step
        or len(scope.trainings) > 1
    ):
        return None
    if loads.was_put_into(optimizer) or scope.origin is not None or restart.loaded_by_script(loads.paths):
        return None
    fast_forwarding = FastForward(control, Path(restart.kept).parent, restart.kept_step)
    if not fast_forwarding.begin(others=training.expects_others):
        return None
    training.begin_at(fast_forwarding.to)
    return fast_forwarding


class FastForward:
    """Counts the steps of the main optimizer until `to`; all updates before it are left out."""

    def __init__(self, control: Control, folder: Path, to: int) -> None:
        self._control, self._folder, self.to = control, folder, to
        self._steps: dict[int, int] = {}  # that each optimizer has made
        self._fits, self._why, self._stepped_again = False, "", False
        self._seen: set[int] = set()
        self._left_out: SkippedUpdate | None = None
        self._trained: dict[int, list[torch.Tensor]] = {}  # by optimizer: what got gradients in its first step
        self._alone = world_size() == 1  # several ranks reduce their gradients in the backward pass, and wait for each other
        HEARTBEAT.enter(CATCHING_UP)

    def begin(self, *, others: bool) -> bool:
        """Put the kept state back; False, with nothing changed, if it does not fit. It may yet, if `others` are still to come."""
        if self._put_back_first() or (others and self._why):
            self._say(f"catching up to step {self.to:,}: the script's loop is gone through without updates")
            return True
        self._give_up()
        return False

    def _put_back_first(self) -> bool:
        try:
            found = self._control.snapshots.restore_from_disk(self._folder, at_or_before=self.to)
        except HoldfastError as error:
            self._why = error.problem
            return False
        if found:
            self.to, self._fits = found, True
        return bool(found)

    def _give_up(self) -> None:
        HEARTBEAT.enter(TRAINING)
        self._say(f"saved state {f'cannot be used ({self._why})' if self._why else 'not found'}; starting from scratch")

    def skips_backward(self) -> bool:
        """Whether a backward pass can be left out; what reads the gradients then finds zeros where there were some.

        Only with one optimizer: of several it is not known whose gradients a backward pass makes.
        """
        if not self._alone or len(self._trained) != 1 or not self._stepped_again:
            return False
        for parameter in next(iter(self._trained.values())):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return True

    def before(self, training: Training, optimizer: Optimizer) -> bool:
        """An update comes: leave it out. An optimizer that is new here brings its own part of the state.

        False if all have come and what was kept still does not fit: the training then begins anew, here.
        """
        if id(optimizer) not in self._seen:
            if self._seen:
                self._put_back_first()
            self._seen.add(id(optimizer))
        elif not self._fits:
            self._give_up()
            training.begin_at(0)
            return False
        self._stepped_again = id(optimizer) in self._trained
        if not self._stepped_again:
            self._trained[id(optimizer)] = [one for one in parameters_of(optimizer) if one.grad is not None]
        self._left_out = SkippedUpdate(parameters_of(optimizer))
        return True

    def after(self, training: Training, optimizer: Optimizer) -> bool:
        """The step is over; True if that was the last one, and the training goes on."""
        if self._left_out is not None:
            self._left_out.give_back()
            self._left_out = None
        self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        main = training.main.optimizer() if training.main is not None else None
        HEARTBEAT.beat()
        if main is not optimizer or not self._fits or self._steps[id(optimizer)] < self.to:
            return False
        self._put_back(randomness=self._alone)  # what is on disk is rank 0's; the others have drawn as before on the way here
        HEARTBEAT.enter(TRAINING)
        self._say(f"caught up at step {self.to:,}")
        return True

    def _put_back(self, *, randomness: bool = False) -> None:
        self._control.snapshots.restore_from_disk(self._folder, at_or_before=self.to, randomness=randomness)

    def _say(self, words: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            print(f"holdfast: {words}", file=sys.stderr, flush=True)
