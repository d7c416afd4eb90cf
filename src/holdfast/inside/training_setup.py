"""Assign an optimizer to a training at its first step, set up its training, and close it when it is over.

    shares parameters with a training                         that training
    existed when a training began, a few steps ago            that training: a GAN
    steps between the steps of a training in this thread      that training: an inner loop (MAML, PGD, a latent per sample)
    trains tensors outside a model after others that are
      gone, or is the fifth short-lived one in a row          that training continues with it
    any other                                                 a training of its own

An inner loop is certain only once the outer optimizer has stepped again. Until then its own rows are kept in memory.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from holdfast.inside.budget import MEETING, Budget
from holdfast.inside.control.restarted import resumes_by_itself, step_loaded
from holdfast.inside.discovery import find_live_objects, find_roots, whole_models
from holdfast.inside.gradients.device_reader import own_values
from holdfast.inside.gradients.step_metrics import StepMetrics
from holdfast.inside.guard.first_failure import FirstFailure
from holdfast.inside.observers.heartbeat import HEARTBEAT
from holdfast.inside.observers.rank_setup import RankSetup
from holdfast.inside.process import DataFeed, Process
from holdfast.inside.ranks import current_rank, world_size
from holdfast.inside.scope import Scope
from holdfast.inside.training import Training
from holdfast.signals.recorder import Recorder
from holdfast.signals.stack_signal import answer_signal, withdraw_if_taken
from holdfast.state.parameters import parameters_of

if TYPE_CHECKING:
    from holdfast.inside.control.which_training import WhichTraining

FirstRow = tuple[list[float | int], StepMetrics]
_SHORT_STEPS, _SHORT_IN_A_ROW = 16, 3  # steps of a short training, and how many of those in a row
Optimizer = torch.optim.Optimizer


def assign(process: Process, optimizer: Optimizer) -> Training | None:
    """Find or begin the training of a new optimizer; None if no scope records it."""
    scope = next((scope for scope in process.scopes if scope.wants(optimizer)), None)
    if scope is None:
        return None
    parameters = parameters_of(optimizer)
    for training in scope.trainings:
        if training.trains(parameters):
            return _continue(training, optimizer, parameters)
    for training in scope.trainings:
        if training.expects(optimizer) and not training.is_over():
            training.join(optimizer)
            live = process.registry.live_objects_with(parameters) or find_live_objects()
            learn_models(process, scope, training, live.modules)
            return training
    of_thread = [training for training in reversed(scope.trainings) if training.losses is process.losses]
    for training in of_thread:
        if _takes_in(training, optimizer, parameters):
            return training
    last_main = of_thread[0].main if of_thread else None
    was_short = last_main is not None and last_main.steps < _SHORT_STEPS
    begun = begin(process, scope, optimizer)
    if begun is not None and was_short:
        begun.short_before = of_thread[0].short_before + 1
    return begun


def _takes_in(training: Training, optimizer: Optimizer, parameters: list[torch.Tensor]) -> bool:
    """Add an optimizer of other parameters to a training of the same thread, if it may belong there."""
    training.choose_main()
    main, outside_model = training.main, not any(isinstance(parameter, nn.Parameter) for parameter in parameters)
    if main is None:
        return False
    if main.optimizer() is not None:
        training.take_in(optimizer, keeps_rows=not (outside_model or training.has_inner_loops or parameters[0].is_cuda))
        return True
    is_short_lived = main.steps < _SHORT_STEPS and (training.expects_others or training.short_before >= _SHORT_IN_A_ROW)
    follows = is_short_lived or (outside_model and not training.roots())
    if follows:
        training.join(optimizer)
        training.has_inner_loops = True
    return follows


def settle(process: Process, training: Training, optimizer: Optimizer) -> None:
    """Decide about an optimizer that keeps stepping without the main one: it becomes the main one, or its own training."""
    member = training.members[id(optimizer)]
    if training.main is None or training.main.steps == 0:
        training.main, member.is_inner = member, False
        return
    training.leave(optimizer)
    scope = next(scope for scope in process.scopes if training in scope.trainings)
    begun = begin(process, scope, optimizer, alone=not member.is_inner, rows=member.rows or ())
    process.of_optimizer[id(optimizer)] = (weakref.ref(optimizer), begun)


def _continue(training: Training, optimizer: Optimizer, parameters: Iterable[torch.Tensor]) -> Training:
    """Add another optimizer of a trained model; it becomes the main one if it takes over the same weights."""
    member = training.join(optimizer)
    main = training.main.optimizer() if training.main is not None else None
    in_main = {id(parameter) for parameter in parameters_of(main)} if main is not None else set()
    if main is None or any(id(parameter) in in_main for parameter in parameters):
        training.main = member
    return training


def begin(
    process: Process, scope: Scope, optimizer: Optimizer, *, alone: bool = False, rows: Sequence[FirstRow] = ()
) -> Training | None:
    """Begin a training with this optimizer; None if its tables cannot be opened.

    `alone`: the optimizer was assigned to another training before, which keeps the loader and the other optimizers.
    `rows`: the steps that it has made there.
    """
    try:
        which = _which(process, scope, optimizer, rows)
        recorder = _open_recorder(scope, which)
    except OSError as error:
        scope.step_back("opening the tables", error)
        return None
    live = process.registry.live_objects_with(parameters_of(optimizer)) or find_live_objects()
    feed = process.thread.feed = process.feeds.for_training(process.thread.feed)
    training = _make_training(process, scope, recorder, feed, optimizer)
    training.which, training.steps_before = which, len(rows)
    if not alone:
        feed.loader.begin()
    scope.begin(training)
    with contextlib.suppress(OSError):
        HEARTBEAT.show_in(recorder.recording.path)
    training.join(optimizer)
    if not alone:
        training.expect(o for o in live.optimizers if _is_free(process, scope, o) and _disjoint(o, optimizer))
    learn_models(process, scope, training, live.modules)
    recorder.every_second(process.saves.rows.flush)
    recorder.every_second(process.trackers.look)
    if world_size() > 1:
        recorder.every_second(RankSetup(recorder, feed.loader).look)
    recorder.every_second(partial(close_ended, process, scope))
    _report_origin(process, scope, training, optimizer)
    for callback in process.when_begun:
        callback(scope, training, optimizer)
    if rows and not training.step:  # else it is fast-forwarded
        training.begin_with(rows)
    clipping, process.thread.first_clipping = process.thread.first_clipping, None
    if clipping is not None:
        training.after_clipping(*clipping)
    close_ended(process, scope)  # last: the code above checks whether there were trainings before
    return training


def learn_models(process: Process, scope: Scope, training: Training, modules: list[nn.Module]) -> None:
    """Find the models that hold the parameters of a training's optimizers."""
    parameters = [p for m in training.members.values() if (o := m.optimizer()) for p in parameters_of(o)]
    roots = list(scope.models()) or find_roots(modules, parameters)
    training.use_models(roots)
    for module in whole_models(roots):
        process.whole_models[id(module)] = (weakref.ref(module), training)


def _which(process: Process, scope: Scope, optimizer: Optimizer, rows: Sequence[FirstRow]) -> WhichTraining | None:
    """Which training of the script this is, under a policy that keeps its states."""
    if not scope.policy.heals:
        return None
    from holdfast.inside.control.which_training import which_training

    loss = rows[0][1].loss if rows else process.losses.total()
    loss = own_values(loss) if isinstance(loss, torch.Tensor) else loss
    loss = None if loss is None else float(loss)
    unpickled = process.loads.has_unpickled(parameters_of(optimizer))
    return which_training(scope.run, current_rank(), loss, optimizer.param_groups[0], unpickled=unpickled)


def _open_recorder(scope: Scope, which: WhichTraining | None) -> Recorder:
    recorder = Recorder.start(scope.run, current_rank(), world_size(), which.facts if which is not None else {})
    if which is not None:
        recorder.checkpoints = scope.run.path / which.folder
    if answer_signal(recorder.recording.path) is not None:
        recorder.every_second(withdraw_if_taken)
    return recorder


def _make_training(process: Process, scope: Scope, recorder: Recorder, feed: DataFeed, optimizer: Optimizer) -> Training:
    """Create a training that counts on from its checkpoint, with a guard under `guard` and `heal`."""
    meeting, thinned = MEETING if world_size() > 1 else 0, recorder.thinning is not None
    budget = Budget(fraction=scope.budget, always_done=scope.always_done, meeting=meeting, meetings_only=thinned)
    loads, by_hand = process.loads, not isinstance(optimizer, Optimizer)
    made = process.thread.backwards - 1 if by_hand else 0
    loaded = step_loaded(loads.paths, optimizer, resumes=resumes_by_itself(loads, optimizer, made), made=made)
    first = 0 if scope.trainings else scope.first_step or loaded
    training = Training(recorder, losses=process.losses, loader=feed.loader, memory=process.memory, budget=budget, first=first)
    if scope.policy.acts:
        from holdfast.inside.compose import guard_training

        process.feeds.keep_batches()
        assert feed.batches is not None
        guard_training(training, scope, feed.batches, by_hand=by_hand)
    else:
        training.first_failure = FirstFailure(recorder, training.roots, training.models.name_of, lambda: training.sampler.half)
    return training


def _report_origin(process: Process, scope: Scope, training: Training, optimizer: Optimizer) -> None:
    """Report the checkpoint that a training resumes from, if any; the helper thread reads journals of other runs for it."""
    if not process.loads and scope.origin is None:
        return
    from holdfast.inside.observers.resumed import loaded_state, report_resumed

    try:
        state = loaded_state(process.loads, training.roots(), optimizer, scope.origin)
        if state is not None:
            report = partial(report_resumed, training.recorder, state, since=process.began, step=training.step)
            training.recorder.run_later(report)
    except Exception as error:  # noqa: BLE001 - the training is recorded without it
        scope.step_back("reporting a resume", error)


def _is_free(process: Process, scope: Scope, optimizer: Optimizer) -> bool:
    entry = process.of_optimizer.get(id(optimizer))  # by reference: ids of dead optimizers are reused
    return (entry is None or entry[0]() is not optimizer) and scope.wants(optimizer)


def _disjoint(a: Optimizer, b: Optimizer) -> bool:
    """Whether two optimizers share no parameter: one that does and never steps may be a discarded attempt."""
    first, second = ({id(parameter) for parameter in parameters_of(optimizer)} for optimizer in (a, b))
    return first.isdisjoint(second)


def close_ended(process: Process, scope: Scope) -> None:
    """Close the trainings of a scope that are over, in the background."""
    for training in scope.take_ended():
        _forget(process, training)
        scope.close_later(partial(_close, process, training))


def _forget(process: Process, training: Training) -> None:
    """Remove a training from the process. In place: the hooks hold the same dictionaries."""
    optimizers, models = process.of_optimizer, process.whole_models
    for key in [key for key, (optimizer, of) in list(optimizers.items()) if of is training and optimizer() is None]:
        optimizers.pop(key, None)
    for key in [key for key, (_, of) in list(models.items()) if of is training]:
        models.pop(key, None)


def _close(process: Process, training: Training) -> None:
    device = training.reader.device if training.reader is not None else None  # not the current device of this thread
    with torch.cuda.device(device) if device is not None else contextlib.nullcontext():
        try:
            for callback in process.when_over:
                callback(training)
        finally:
            training.close()
            if training.control is not None:
                training.control.thin()
