"""What each thread of the script is doing: two threads may train two models, and a third may draw batches for one of them.

A thread trains with what it draws itself. One that draws nothing trains with what a thread draws that trains nothing.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch

from holdfast.inside.manual_updates import FIRST_LOOK, ManualUpdates, Search
from holdfast.inside.observers.evaluations import EvaluationPhase
from holdfast.inside.observers.loader import Loader
from holdfast.inside.observers.losses import Losses

if TYPE_CHECKING:  # loaded under a policy that acts
    from holdfast.inside.observers.batches import Batches

_FEEDS_AT_MOST = 16  # of threads that have ended


class DataFeed:
    """What one training learns from: its loader and, under a policy that acts, the batches of the step under way."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.batches: Batches | None = None
        self.drawn_by = threading.current_thread()
        self.trained_by: threading.Thread | None = None


class ThreadState(threading.local):
    """Attributes of the thread that asks; each thread begins with these."""

    def __init__(self) -> None:
        self.losses = Losses()
        self.cost = 0.0  # seconds spent in events that belong to no training yet
        self.feed: DataFeed | None = None
        self.steps_under_way = 0  # a step inside a step (an optimizer that drives another) is part of it
        self.in_closure = self.in_backward = self.reached_update = False
        self.scaler: Any = None
        # parameters, norm and limit of a clipping before the first step, whose training is not known yet
        self.first_clipping: tuple[list[weakref.ref[torch.Tensor]], Any, Any] | None = None
        self.backwards, self.look_at = 0, FIRST_LOOK  # passes since an optimizer stepped, and when to look who updates then
        self.manual_search = Search()
        self.manual: ManualUpdates | None = None
        self.evaluation: EvaluationPhase | None = None
        self.evaluating_since: float | None = None


class Feeds:
    """The feeds of all threads."""

    def __init__(self) -> None:
        self.joins_late = False  # whether a training may have been under way, in the middle of a pass, before anyone looked
        self._feeds: list[DataFeed] = []
        self._batches: Batches | None = None  # the first, which knows what loaders have asked their samplers for

    def keep_batches(self) -> Batches:
        """From now on the batches of each step are kept; one that listens to what loaders ask their samplers for."""
        from holdfast.inside.observers.batches import Batches

        self._batches = self._batches or Batches()
        for feed in self._feeds:
            feed.batches = feed.batches or Batches(self._batches.asked)
        return self._batches

    def for_drawing(self, iterator: Any) -> DataFeed:
        """The feed of a thread that draws for the first time: that of an ended one with the same data, or a new one."""
        for feed in self._feeds:
            if not feed.drawn_by.is_alive() and feed.loader.is_main(iterator):  # a thread for each pass
                feed.drawn_by = threading.current_thread()
                return feed
        return self._add()

    def for_training(self, own: DataFeed | None) -> DataFeed:
        """The feed of a thread whose training begins."""
        here = threading.current_thread()
        feed = own
        if own is None or not own.loader.has_drawn:
            others = [one for one in self._feeds if one.loader.has_drawn and one.trained_by in (None, here)]
            feed = others[-1] if others else own
        feed = feed or self._add()
        feed.trained_by = here
        return feed

    def clear(self) -> None:
        """In a forked child."""
        self._feeds.clear()

    def _add(self) -> DataFeed:
        if len(self._feeds) >= _FEEDS_AT_MOST:
            self._feeds = [feed for feed in self._feeds if feed.drawn_by.is_alive() or feed.trained_by is not None]
        feed = DataFeed(Loader(joins_late=self.joins_late))
        self._feeds.append(feed)
        if self._batches is not None:
            self.keep_batches()
        return feed
