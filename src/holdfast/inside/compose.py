"""Give a training its guard, and control where the policy allows repairs. Loaded under a policy that acts, not before."""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast.inside.control.control import Control
from holdfast.inside.control.restarted import restarted
from holdfast.inside.guard.failure_context import FailureContext
from holdfast.inside.guard.guard import Guard
from holdfast.inside.guard.report import Report
from holdfast.inside.observers.batches import Batches
from holdfast.inside.ranks import world_size
from holdfast.inside.run_checkpoints import RecordedState
from holdfast.inside.scope import Scope
from holdfast.inside.training import Training
from holdfast.state.background import BackgroundThread
from holdfast.state.report import SaveReport
from holdfast.state.snapshots import Snapshots

_SNAPSHOTS = 5  # at most, further and further apart: a fault that is seen late still has a clean ancestor


def guard_training(training: Training, scope: Scope, batches: Batches, *, by_hand: bool = False) -> None:
    """Have every update of a training looked at before it is made, and snapshots kept where the policy allows repairs."""
    recorder = training.recorder
    folder, rank, journal = recorder.recording.path, recorder.recording.rank, recorder.run.journal
    failure_context = FailureContext(batches, folder=folder / "batches", models=training.roots, run_later=recorder.run_later)
    report = Report(journal, rank, training.models.name_of, failure_context, lambda: training.sampler.half)
    training.guard = Guard(scope.policy, report, scope.averages)
    if by_hand:
        words = "the script updates its parameters without a torch optimizer: gradients of a bad update are set to zero"
        report.cannot("guard", f"{words}; clipping, lowering the learning rate and rolling back are not possible")
    if by_hand or not scope.policy.heals:
        return
    helper = BackgroundThread("holdfast-snapshots", on_error=recorder.step_back)  # saving takes seconds
    state = RecordedState(scope.averages, warn=partial(report.cannot, "roll-back"))
    snapshots = Snapshots(
        partial(state.of_training, training),
        every=50 if world_size() == 1 else 100,  # with one rank the interval grows with the cost; ranks must agree on theirs
        run_later=helper.submit,
        keep=_SNAPSHOTS,
        rank=rank,
        world_size=world_size(),
        index=folder / "snapshots.json",
        facts=partial(_facts, training, scope),
        report=SaveReport(recorder.run.path / "checkpoints", recorder.run, warns=False),
        warn=partial(report.cannot, "snapshots"),
    )
    training.control = Control(
        run=recorder.run.path,
        journal=journal,
        rank=rank,
        part=recorder.recording.part,
        guard=training.guard,
        snapshots=snapshots,
        micro_batches=lambda: scope.micro_batches,
        helper=helper,
        optimizers=training.optimizers,
    )
    if (restart := restarted()) is not None and restart.lr_factor != 1.0:
        training.control.lr.lower(restart.lr_factor, training.step)


def _facts(training: Training, scope: Scope) -> dict[str, Any]:
    """What the manifest of a checkpoint of this training says."""
    return {
        "epoch": training.loader.epoch,
        "settings": dict(scope.settings),
        "rank": training.recorder.recording.rank,
        "world_size": world_size(),
        "run": str(scope.run.path),
    }
