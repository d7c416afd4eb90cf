"""Give a training its guard, and control where the policy allows repairs. Loaded under a policy that acts, not before."""

from __future__ import annotations

from functools import partial

from holdfast.inside.capture.batches import Batches
from holdfast.inside.control import Control
from holdfast.inside.helper import Helper
from holdfast.inside.ranks import world_size
from holdfast.inside.reflexes.blame import Blame
from holdfast.inside.reflexes.guard import Guard
from holdfast.inside.reflexes.report import Report
from holdfast.inside.scope import Scope
from holdfast.inside.snapshots.snapshots import Snapshots
from holdfast.inside.snapshots.state import TrainingState
from holdfast.inside.training import Training

_SNAPSHOTS = 5  # at most, further and further apart: a fault that is seen late still has a clean ancestor


def guard_training(training: Training, scope: Scope, batches: Batches) -> None:
    """Have every update of a training looked at before it is made, and snapshots kept where the policy allows repairs."""
    recorder = training.recorder
    folder, rank, journal = recorder.recording.path, recorder.recording.rank, recorder.run.journal
    blame = Blame(batches, folder=folder / "batches", models=training.roots, run_later=recorder.run_later)
    report = Report(journal, rank, training.name_of, blame)
    training.guard = Guard(scope.policy, report, scope.averages)
    if not scope.policy.heals:
        return
    helper = Helper("holdfast-snapshots", on_trouble=recorder.step_back)  # saving takes seconds
    snapshots = Snapshots(
        LivingState(training, report),
        run_later=helper.later,
        keep=_SNAPSHOTS,
        rank=rank,
        world_size=world_size(),
        index=folder / "snapshots.json",
        settings=scope.settings,
        say=partial(report.cannot, "snapshots"),
    )
    training.control = Control(
        run=recorder.run.path, journal=journal, rank=rank, guard=training.guard, snapshots=snapshots, scope=scope, helper=helper
    )


class LivingState:
    """What has to be restored in a roll-back: found once, and again when an optimizer has joined."""

    def __init__(self, training: Training, report: Report) -> None:
        self._training, self._report = training, report
        self._state: TrainingState | None = None
        self._optimizers = 0

    def __call__(self) -> TrainingState | None:
        """The state as it is now. What cannot be seen of it is told once, with the line to add."""
        members = self._training.members.values()
        optimizers = [optimizer for member in members if (optimizer := member.optimizer()) is not None]
        if self._state is None or self._optimizers != len(optimizers):
            guard = self._training.guard
            averages = guard.averages.living() if guard is not None else []
            self._state = TrainingState.discover(self._training.roots(), optimizers, averages)
            self._optimizers = len(optimizers)
            for words in self._state.missing():
                self._report.cannot("roll-back", words)
        return self._state
