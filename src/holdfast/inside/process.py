"""What Holdfast knows of this process: its runs, their trainings, and whose optimizers and models are whose. Knows no event."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable

import torch
from torch import nn

from holdfast.inside.discovery import Registry
from holdfast.inside.observers.checkpoint_log import CheckpointLog
from holdfast.inside.observers.loader import Loader
from holdfast.inside.observers.losses import Losses
from holdfast.inside.observers.memory import ProcessMemory
from holdfast.inside.observers.trackers import Trackers
from holdfast.inside.scope import Scope
from holdfast.inside.taps.loads import Loads
from holdfast.inside.taps.saves import Saves
from holdfast.inside.thread_state import Feeds, ThreadState
from holdfast.inside.training import Training

Optimizer = torch.optim.Optimizer


class Process:
    """The state of Holdfast in one process."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.thread, self.feeds, self.memory, self.registry = ThreadState(), Feeds(), ProcessMemory(), Registry()
        checkpoint_log = CheckpointLog(lambda: self.scopes)
        self.saves, self.loads, self.trackers = Saves(checkpoint_log), Loads(checkpoint_log), Trackers(checkpoint_log)
        self.began = time.time()
        self.gradient_calls = 0  # of `torch.autograd.grad`, by the script or by `torch.func`
        self.of_optimizer: dict[int, tuple[weakref.ref[Optimizer], Training | None]] = {}
        self.whole_models: dict[int, tuple[weakref.ref[nn.Module], Training]] = {}
        self.on_step_boundary: Callable[[Training], None] | None = None  # set while requests are pending
        self.stopping: Callable[[Training], None] | None = None  # set when Ctrl-C was pressed
        self.when_begun: list[Callable[[Scope, Training, Optimizer], None]] = []  # called when a training has begun
        self.when_over: list[Callable[[Training], None]] = []  # and before it is closed

    @property
    def trainings(self) -> list[Training]:
        """All trainings of this process, in all scopes."""
        if len(self.scopes) == 1:
            return self.scopes[0].trainings
        return [training for scope in self.scopes for training in scope.trainings]

    @property
    def losses(self) -> Losses:
        """The losses that this thread has gone backward from since its last step."""
        return self.thread.losses

    @property
    def loader(self) -> Loader:
        """What this thread draws its batches from."""
        if self.thread.feed is None:
            self.thread.feed = self.feeds.for_drawing(None)
        return self.thread.feed.loader
