"""Find `model`, `optimizer`, `scheduler`, `train_loader` and `trainer` where no such name exists: by what they are."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from holdfast.inside.control.frames import Locals
from holdfast.state.related_objects import find_related_objects

if TYPE_CHECKING:
    from holdfast.inside.training import Training

_TRAINERS = ("lightning", "pytorch_lightning", "transformers")


class ByType:
    """The things of one training, by the names that most scripts give them."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._ways = {
            "model": self._model,
            "optimizer": self._optimizer,
            "scheduler": self._scheduler,
            "train_loader": self._loader,
            "trainer": self._trainer,
        }

    def __call__(self, name: str, frames: list[FrameType]) -> Any:
        """What goes by that name; None if there is none."""
        way = self._ways.get(name)
        return way(frames) if way is not None else None

    def _model(self, _frames: list[FrameType]) -> Any:
        roots = self._training.roots()
        return roots[0] if roots else None

    def _optimizer(self, _frames: list[FrameType]) -> Any:
        return self._training.main.optimizer() if self._training.main is not None else None

    def _scheduler(self, _frames: list[FrameType]) -> Any:
        optimizers = [one for member in self._training.members.values() if (one := member.optimizer()) is not None]
        found = find_related_objects(self._training.roots(), optimizers).schedulers
        return found[0] if found else None

    def _loader(self, _frames: list[FrameType]) -> Any:
        """The loader that batches come from: an iterator does not know it, so that it is known by its data set."""
        iterator, dataset = self._training.loader.drawn_from()
        if dataset is None:
            return None
        loaders = [one for one in gc.get_objects() if DataLoader in type(one).__mro__]
        fitting = [one for one in loaders if (held := vars(one).get("dataset")) is dataset or id(held) == dataset]
        drawn = [one for one in fitting if iterator is not None and vars(one).get("_iterator") is iterator]
        return next(iter([*drawn, *fitting]), None)

    def _trainer(self, frames: Iterable[FrameType]) -> Any:
        for frame in frames:
            if "self" in frame.f_code.co_varnames[: frame.f_code.co_argcount]:
                inside = Locals(frame, here=False)
                owner = inside.read().get("self")
                inside.let_go()
                if any(kind.__name__ == "Trainer" and kind.__module__.startswith(_TRAINERS) for kind in type(owner).__mro__):
                    return owner
        return None
