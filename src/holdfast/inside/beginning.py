"""Begin a training: open its tables, find its models, and give it what its scope asks for (a guard, a door)."""

from __future__ import annotations

import contextlib
import os
import weakref
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from holdfast.inside.budget import MEETING, Budget
from holdfast.inside.discovery import find_living, find_roots, whole_models
from holdfast.inside.ended import close_ended
from holdfast.inside.pulse import PULSE
from holdfast.inside.ranks import current_rank, world_size
from holdfast.inside.restarted import restarted, step_loaded
from holdfast.inside.scope import Scope
from holdfast.inside.thread_state import Feed
from holdfast.inside.training import Training
from holdfast.inside.witness import Witness
from holdfast.signals.recorder import Recorder
from holdfast.signals.stack_signal import answer_signal, withdraw_if_taken

if TYPE_CHECKING:
    from holdfast.inside.session import Session

Optimizer = torch.optim.Optimizer


def begin(session: Session, scope: Scope, optimizer: Optimizer, *, alone: bool = False) -> Training | None:
    """Begin a training with this optimizer; None if its tables cannot be opened.

    `alone`: the optimizer was taken for part of another training, which goes on with the loader and the other optimizers.
    """
    recorder = _open_recorder(scope)
    if recorder is None:
        return None
    living = session.registry.living_with(p for group in optimizer.param_groups for p in group["params"]) or find_living()
    feed = session.here.feed = session.feeds.for_training(session.here.feed)
    training = _make_training(session, scope, recorder, feed, by_hand=not isinstance(optimizer, Optimizer))
    if not alone:
        feed.loader.begin()
    scope.begin(training)
    with contextlib.suppress(OSError):
        PULSE.show_in(recorder.recording.path)
    session.close_with_the_process()
    training.join(optimizer)
    if not alone:
        training.expect(o for o in living.optimizers if _is_free(session, scope, o) and _disjoint(o, optimizer))
    learn_models(session, scope, training, living.modules)
    recorder.every_second(session.saves.rows.flush)
    recorder.every_second(partial(close_ended, session, scope))
    _open_door(session, scope, training)
    _tell_origin(session, scope, training, optimizer)
    if scope.follows_children and scope.policy.acts:
        session.interrupt.listen(scope)
    if restarted() is not None and isinstance(optimizer, Optimizer):
        from holdfast.inside.catching_up import catch_up

        session.catching_up = catch_up(session.loads, scope, training, optimizer)
    clipped, session.here.first_clipping = session.here.first_clipping, None
    if clipped is not None and (of := [p for reference in clipped[0] if (p := reference()) is not None]):
        training.after_clipping(clipped[1], clipped[2], of)
    close_ended(session, scope)  # last: that there were others before is asked above
    return training


def learn_models(session: Session, scope: Scope, training: Training, modules: list[nn.Module]) -> None:
    """Find the models that hold the parameters of a training's optimizers."""
    parameters = [p for m in training.members.values() if (o := m.optimizer()) for g in o.param_groups for p in g["params"]]
    roots = list(scope.models()) or find_roots(modules, parameters)
    training.use_models(roots)
    for module in whole_models(roots):
        session.whole_models[id(module)] = (weakref.ref(module), training)


def _open_recorder(scope: Scope) -> Recorder | None:
    try:
        recorder = Recorder.start(scope.run, current_rank())
        if answer_signal(recorder.recording.path) is not None:
            recorder.every_second(withdraw_if_taken)
        return recorder
    except OSError as error:
        scope.step_back("opening the tables", error)
        return None


def _make_training(session: Session, scope: Scope, recorder: Recorder, feed: Feed, *, by_hand: bool) -> Training:
    """A training that counts from where its checkpoint ended, guarded under a policy that acts."""
    budget = Budget(fraction=scope.budget, always_done=scope.always_done, meeting=MEETING if world_size() > 1 else 0)
    first = 0 if scope.trainings else scope.first_step or step_loaded(session.loads.paths)
    training = Training(recorder, losses=session.losses, loader=feed.loader, memory=session.memory, budget=budget, first=first)
    if scope.policy.acts:
        from holdfast.inside.guarding import guard_training

        session.feeds.keep_batches()
        assert feed.batches is not None
        guard_training(training, scope, feed.batches, by_hand=by_hand)
    else:
        training.witness = Witness()
    return training


def _open_door(session: Session, scope: Scope, training: Training) -> None:
    """Let a training be asked from outside, unless that was switched off."""
    if not scope.door or os.environ.get("HOLDFAST_DOOR") == "0":
        return
    try:
        if session.doors is None:
            from holdfast.inside.door.door import Doors

            session.doors = Doors(session)
        session.doors.open(training, scope)
    except Exception as error:  # noqa: BLE001 - the training is recorded without it
        scope.step_back("opening the door", error)


def _tell_origin(session: Session, scope: Scope, training: Training, optimizer: Optimizer) -> None:
    """Say from which checkpoint a training goes on, if it does. Journals of other runs are read for that by the helper."""
    if not session.loads.anything and scope.origin is None:
        return
    from holdfast.inside.capture.resumed import facts_of, tell_resumed

    try:
        facts = facts_of(session.loads, training.roots(), optimizer, scope.origin)
        if facts is not None:
            tell = partial(tell_resumed, training.recorder, facts, since=session.began, step=training.step)
            training.recorder.run_later(tell)
    except Exception as error:  # noqa: BLE001 - the training is recorded without it
        scope.step_back("looking at what was loaded", error)


def _is_free(session: Session, scope: Scope, optimizer: Optimizer) -> bool:
    known = session.of_optimizer.get(id(optimizer))
    return (known is None or known[0]() is not optimizer) and scope.wants(optimizer)  # a dead one's id is soon another one's


def _disjoint(one: Optimizer, other: Optimizer) -> bool:
    """Whether two optimizers share no parameter: the one that does not step may be an earlier try, thrown away."""
    parts = ({id(p) for group in o.param_groups for p in group["params"]} for o in (one, other))
    return next(parts).isdisjoint(next(parts))
