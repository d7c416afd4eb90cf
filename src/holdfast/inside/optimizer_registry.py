"""Which training an optimizer belongs to. Asked at an optimizer's first step; after that the process knows it.

    shares parameters with a training                         that training
    was there when a training began, a few steps ago          that training: two networks trained against each other
    steps between the steps of a training in this thread      that training: an inner loop (MAML, PGD, a latent of each sample)
    trains loose tensors after others that are gone, or is
      the fifth in a row that comes and goes in a few steps   that training goes on with it
    any other                                                 a training of its own

That it steps between another's steps is known once that one has stepped again. Until then its own rows are kept in memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import nn

from holdfast.inside.discovery import find_live_objects
from holdfast.inside.training import Training
from holdfast.inside.training_setup import begin, learn_models

if TYPE_CHECKING:
    from holdfast.inside.process import Process

_SHORT, _IN_A_ROW = 16, 3  # steps, trainings
Optimizer = torch.optim.Optimizer


def assign(process: Process, optimizer: Optimizer) -> Training | None:
    """The training of an optimizer that is seen for the first time; None if no scope wants it."""
    scope = next((scope for scope in process.scopes if scope.wants(optimizer)), None)
    if scope is None:
        return None
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for training in scope.trainings:
        if training.trains(parameters):
            return _continue(training, optimizer, parameters)
    for training in scope.trainings:
        if training.expects(optimizer) and not training.is_over():
            training.join(optimizer)
            learn_models(
                process, scope, training, (process.registry.live_objects_with(parameters) or find_live_objects()).modules
            )
            return training
    here = [training for training in reversed(scope.trainings) if training.losses is process.losses]
    for training in here:
        if _takes_in(training, optimizer, parameters):
            return training
    was_short = bool(here) and here[0].main is not None and here[0].main.steps < _SHORT
    begun = begin(process, scope, optimizer)
    if begun is not None and was_short:
        begun.short_before = here[0].short_before + 1
    return begun


def _takes_in(training: Training, optimizer: Optimizer, parameters: list[torch.Tensor]) -> bool:
    """Whether an optimizer of other parameters may be part of a training of the same thread all the same."""
    training.choose_main()
    main, loose = training.main, not any(isinstance(parameter, nn.Parameter) for parameter in parameters)
    if main is None:
        return False
    if main.optimizer() is not None:
        training.take_in(optimizer, keeps_rows=not (loose or training.has_inner_loops or parameters[0].is_cuda))
        return True
    come_and_go = main.steps < _SHORT and (training.expects_others or training.short_before >= _IN_A_ROW)
    follows = come_and_go or (loose and not training.roots())
    if follows:
        training.join(optimizer)
        training.has_inner_loops = True
    return follows


def settle(process: Process, training: Training, optimizer: Optimizer) -> None:
    """An optimizer steps and steps without the main one: it is the main one, or a training of its own."""
    member = training.members[id(optimizer)]
    if training.main is None or training.main.steps == 0:
        training.main, member.is_inner = member, False
        return
    training.leave(optimizer)
    scope = next(scope for scope in process.scopes if training in scope.trainings)
    begun = begin(process, scope, optimizer, alone=not member.is_inner)
    process.of_optimizer[id(optimizer)] = (weakref.ref(optimizer), begun)
    if begun is not None and member.rows:
        begun.begin_with(member.rows)


def _continue(training: Training, optimizer: Optimizer, parameters: Iterable[torch.Tensor]) -> Training:
    """Another optimizer for a model that is already trained: the next main one if it takes over the same weights."""
    member = training.join(optimizer)
    main = training.main.optimizer() if training.main is not None else None
    taken = {id(p) for group in main.param_groups for p in group["params"]} if main is not None else set()
    if main is None or any(id(parameter) in taken for parameter in parameters):
        training.main = member
    return training
