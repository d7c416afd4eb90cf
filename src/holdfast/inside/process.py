"""The state of Holdfast in this process: runs, trainings, which optimizer and model belongs to which, and each thread. No events.

Two threads may train two models, and a third may draw batches for one of them. A thread trains on the batches that it draws. A
thread that draws none trains on those of a thread that does not train.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from holdfast.inside.discovery import Registry
from holdfast.inside.manual_updates import FIRST_LOOK, ManualUpdates, Search
from holdfast.inside.observers.checkpoint_log import CheckpointLog
from holdfast.inside.observers.evaluations import EvaluationPhase
from holdfast.inside.observers.loader import Loader
from holdfast.inside.observers.losses import Losses
from holdfast.inside.observers.memory import ProcessMemory
from holdfast.inside.observers.trackers import Trackers
from holdfast.inside.scope import Scope
from holdfast.inside.taps.loads import Loads
from holdfast.inside.taps.saves import Saves
from holdfast.inside.training import Training

if TYPE_CHECKING:  # loaded under a policy that acts
    from holdfast.inside.observers.batches import Batches

Optimizer = torch.optim.Optimizer
_MAX_FEEDS = 16  # then those of ended threads are dropped


class DataFeed:
    """The data of one training: its loader and, under `guard` and `heal`, the batches of the step in progress."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.batches: Batches | None = None
        self.drawn_by = threading.current_thread()
        self.trained_by: threading.Thread | None = None


class ThreadState:
    """What belongs to one thread; each starts with these values."""

    def __init__(self) -> None:
        self.losses = Losses()
        self.cost = 0.0  # seconds of Holdfast that are not charged to a training yet
        self.feed: DataFeed | None = None
        self.steps_under_way = 0  # nested steps (an optimizer that drives another) count as one
        self.in_closure = self.in_backward = self.reached_update = False
        self.scaler: Any = None
        # norm, max_norm and parameters of a clipping before the first step, when the training is not known yet
        self.first_clipping: tuple[Any, Any, list[torch.Tensor]] | None = None
        self.backwards, self.look_at = 0, FIRST_LOOK  # since an optimizer stepped, and when to search next
        self.manual_search = Search()
        self.manual: ManualUpdates | torch.optim.Optimizer | None = None  # found, or what stands in for a framework's optimizer
        self.in_manual_update = False  # the gradients exist, and the update comes before the next backward pass
        self.evaluation: EvaluationPhase | None = None
        self.common: Any = None  # the CommonStep of the training, if its next step may be one


class Threads(threading.local):
    """`here` is the state of the thread that asks: one slow look-up for each event, instead of one for each value."""

    def __init__(self) -> None:
        self.here = ThreadState()


class Feeds:
    """The feeds of all threads."""

    def __init__(self) -> None:
        self.joins_late = False  # Holdfast may have been attached in the middle of an epoch
        self._feeds: list[DataFeed] = []
        self._batches: Batches | None = None  # the first one, which records the indices of all samplers

    def keep_batches(self) -> Batches:
        """Keep the batches of each step from now on; returns the object that records the samplers' indices."""
        from holdfast.inside.observers.batches import Batches

        self._batches = self._batches or Batches()
        for feed in self._feeds:
            feed.batches = feed.batches or Batches(self._batches.sampled)
        return self._batches

    def for_drawing(self, iterator: Any) -> DataFeed:
        """The feed of a thread that draws its first batch: that of an ended thread with the same dataset, or a new one."""
        for feed in self._feeds:
            if not feed.drawn_by.is_alive() and feed.loader.is_main(iterator):  # one thread per epoch
                feed.drawn_by = threading.current_thread()
                return feed
        return self._add()

    def for_training(self, own: DataFeed | None) -> DataFeed:
        """The feed of a thread that begins to train."""
        thread = threading.current_thread()
        feed = own
        if own is None or not own.loader.has_drawn:
            others = [other for other in self._feeds if other.loader.has_drawn and other.trained_by in (None, thread)]
            feed = others[-1] if others else own
        feed = feed or self._add()
        feed.trained_by = thread
        return feed

    def clear(self) -> None:
        """Drop all feeds, in a forked child."""
        self._feeds.clear()

    def _add(self) -> DataFeed:
        if len(self._feeds) >= _MAX_FEEDS:
            self._feeds = [feed for feed in self._feeds if feed.drawn_by.is_alive() or feed.trained_by is not None]
        feed = DataFeed(Loader(joins_late=self.joins_late))
        self._feeds.append(feed)
        if self._batches is not None:
            self.keep_batches()
        return feed


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
