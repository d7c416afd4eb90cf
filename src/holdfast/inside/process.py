"""The state of Holdfast in this process: runs, trainings, and which optimizer and model belongs to which. Handles no events."""

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
from holdfast.inside.thread_state import Feeds, Threads, ThreadState
from holdfast.inside.training import Training

Optimizer = torch.optim.Optimizer


class Process:
    """The state of Holdfast in one process."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.threads, self.feeds, self.memory, self.registry = Threads(), Feeds(), ProcessMemory(), Registry()
        checkpoint_log = CheckpointLog(lambda: self.scopes)
        self.saves, self.loads, self.trackers = Saves(checkpoint_log), Loads(checkpoint_log), Trackers(checkpoint_log)
        self.began = time.time()
        self.gradient_calls = 0  # to `torch.autograd.grad`, by the script or by `torch.func`
        self.of_optimizer: dict[int, tuple[weakref.ref[Optimizer], Training | None]] = {}
        self.whole_models: dict[int, tuple[weakref.ref[nn.Module], Training]] = {}
        self.on_step_boundary: Callable[[Training], None] | None = None  # set while requests are pending
        self.stopping: Callable[[Training], None] | None = None  # set after Ctrl-C
        self.when_begun: list[Callable[[Scope, Training, Optimizer], None]] = []  # callbacks
        self.when_over: list[Callable[[Training], None]] = []  # before a training is closed

    @property
    def trainings(self) -> list[Training]:
        """The trainings of all scopes."""
        if len(self.scopes) == 1:
            return self.scopes[0].trainings
        return [training for scope in self.scopes for training in scope.trainings]

    @property
    def thread(self) -> ThreadState:
        """The state of this thread."""
        return self.threads.here

    @property
    def losses(self) -> Losses:
        """The losses of this thread since its last step."""
        return self.thread.losses

    @property
    def loader(self) -> Loader:
        """The loader that this thread draws from."""
        if self.thread.feed is None:
            self.thread.feed = self.feeds.for_drawing(None)
        return self.thread.feed.loader
