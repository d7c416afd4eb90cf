"""Assign an optimizer to a training, at its first step.

    shares parameters with a training                         that training
    existed when a training began, a few steps ago            that training: a GAN
    steps between the steps of a training in this thread      that training: an inner loop (MAML, PGD, a latent per sample)
    trains tensors outside a model after others that are
      gone, or is the fifth short-lived one in a row          that training continues with it
    any other                                                 a training of its own

An inner loop is certain only once the outer optimizer has stepped again. Until then its own rows are kept in memory.
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
from holdfast.state.parameters import parameters_of

if TYPE_CHECKING:
    from holdfast.inside.process import Process

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
    begun = begin(process, scope, optimizer, alone=not member.is_inner)
    process.of_optimizer[id(optimizer)] = (weakref.ref(optimizer), begun)
    if begun is not None and member.rows:
        begun.begin_with(member.rows)


def _continue(training: Training, optimizer: Optimizer, parameters: Iterable[torch.Tensor]) -> Training:
    """Add another optimizer of a trained model; it becomes the main one if it takes over the same weights."""
    member = training.join(optimizer)
    main = training.main.optimizer() if training.main is not None else None
    in_main = {id(parameter) for parameter in parameters_of(main)} if main is not None else set()
    if main is None or any(id(parameter) in in_main for parameter in parameters):
        training.main = member
    return training
