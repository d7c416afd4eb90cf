"""Close the trainings that are over while their process goes on: trials of a search, folds, the inner loops of another training.

Each has threads, an open door, mapped files and, under a policy that repairs, snapshots. One is over when nothing is left that
could go on with it: no optimizer, no model, none of its parameters. Looked at when a training begins and about once a second;
the closing itself may wait for a disk, so it has a thread of its own.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from holdfast.inside.process import Process
    from holdfast.inside.scope import Scope
    from holdfast.inside.training import Training


def close_ended(process: Process, scope: Scope) -> None:
    """Have the trainings of a scope that are over closed, and forget them. Does not wait."""
    for training in scope.take_ended():
        _forget(process, training)
        scope.close_later(partial(_close, process, training))


def _forget(process: Process, training: Training) -> None:
    """Nothing in the process is to lead to it any more. In place: the hooks hold on to the same dictionaries."""
    optimizers, models = process.of_optimizer, process.whole_models
    for key in [key for key, (optimizer, of) in list(optimizers.items()) if of is training and optimizer() is None]:
        optimizers.pop(key, None)
    for key in [key for key, (_, of) in list(models.items()) if of is training]:
        models.pop(key, None)


def _close(process: Process, training: Training) -> None:
    device = training.reader.device if training.reader is not None else None  # another one than this thread would wait for
    with torch.cuda.device(device) if device is not None else contextlib.nullcontext():
        try:
            for tell in process.when_over:
                tell(training)
        finally:
            training.close()
