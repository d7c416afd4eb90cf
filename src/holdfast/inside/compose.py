"""Build the guard of a training, and its control where the policy allows repairs. Imported under such a policy only."""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast.inside.control.control import Control
from holdfast.inside.control.restarted import restarted
from holdfast.inside.control.settings import settings_of
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

_MAX_SNAPSHOTS = 5  # with growing distance: there is a clean one even if a fault is found late


def guard_training(training: Training, scope: Scope, batches: Batches, *, by_hand: bool = False) -> None:
    """Have every update of a training checked, and snapshots taken where the policy allows repairs."""
    recorder = training.recorder
    folder, rank = recorder.recording.path, recorder.recording.rank
    report = Report(recorder, training.roots, training.models.name_of, lambda: training.sampler.half, batches)
    training.guard = Guard(scope.policy, report, scope.averages)
    if by_hand:
        text = "the script updates its parameters without a torch optimizer: the gradients of a bad update are zeroed"
        report.cannot("guard", f"{text}; clipping, a lower learning rate and rollback are not possible")
    if by_hand or not scope.policy.heals:
        return
    helper = BackgroundThread("holdfast-snapshots", on_error=recorder.step_back)  # a save takes seconds
    state = RecordedState(scope.averages, warn=partial(report.cannot, "roll-back"))
    snapshots = Snapshots(
        partial(state.of_training, training),
        every=10 if world_size() == 1 else 100,  # one rank adapts the interval to the cost; several have to agree
        run_later=helper.submit,
        keep=_MAX_SNAPSHOTS,
        rank=rank,
        world_size=world_size(),
        index=folder / "snapshots.json",
        facts=partial(_manifest_facts, training, scope),
        report=SaveReport(recorder.checkpoints, recorder.run, warns=False, place=recorder.recording.place),
        warn=partial(report.cannot, "snapshots"),
    )
    training.control = Control(
        recorder,
        guard=training.guard,
        snapshots=snapshots,
        micro_batches=lambda: scope.micro_batches,
        helper=helper,
        settings=partial(settings_of, training),
        optimizers=training.optimizers,
        trainer=scope.trainer,
    )
    if (restart := restarted()) is None:
        return
    if restart.lr_factor != 1.0:
        settings_of(training).lr.lower(restart.lr_factor, training.step)
    if restart.lr_limit is not None:
        settings_of(training).first_lr_limit = restart.lr_limit


def _manifest_facts(training: Training, scope: Scope) -> dict[str, Any]:
    """What the manifest of a checkpoint records about this training."""
    return {
        "epoch": training.loader.epoch,
        "settings": dict(scope.settings),
        "rank": training.recorder.recording.rank,
        "world_size": world_size(),
        "run": str(scope.run.path),
    }
