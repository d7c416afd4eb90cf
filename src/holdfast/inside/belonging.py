"""Which training an optimizer belongs to.

To the one whose parameters it shares, or to one that has just begun and was begun while the optimizer was already there
(two networks trained against each other); any other begins a training of its own. Asked at an optimizer's first step; after
that the session knows it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from holdfast.inside.beginning import begin, learn_models
from holdfast.inside.discovery import find_living
from holdfast.inside.training import Training

if TYPE_CHECKING:
    from holdfast.inside.session import Session

Optimizer = torch.optim.Optimizer


def assign(session: Session, optimizer: Optimizer) -> Training | None:
    """The training of an optimizer that is seen for the first time; None if no scope wants it."""
    scope = next((scope for scope in session.scopes if scope.wants(optimizer)), None)
    if scope is None:
        return None
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for training in scope.trainings:
        if training.trains(parameters):
            return _continue(training, optimizer, parameters)
    for training in scope.trainings:
        if training.expects(optimizer) and not training.is_over():
            training.join(optimizer)
            learn_models(session, scope, training, find_living().modules)
            return training
    return begin(session, scope, optimizer)


def settle(session: Session, training: Training, optimizer: Optimizer) -> None:
    """An optimizer steps and steps without the main one: it is the main one, or a training of its own."""
    if training.main is None or training.main.steps == 0:
        training.main = training.members[id(optimizer)]
        return
    training.leave(optimizer)
    scope = next(scope for scope in session.scopes if training in scope.trainings)
    session.of_optimizer[id(optimizer)] = (weakref.ref(optimizer), begin(session, scope, optimizer, alone=True))


def _continue(training: Training, optimizer: Optimizer, parameters: Iterable[torch.Tensor]) -> Training:
    """Another optimizer for a model that is already trained: the next main one if it takes over the same weights."""
    member = training.join(optimizer)
    main = training.main.optimizer() if training.main is not None else None
    taken = {id(p) for group in main.param_groups for p in group["params"]} if main is not None else set()
    if main is None or any(id(parameter) in taken for parameter in parameters):
        training.main = member
    return training
