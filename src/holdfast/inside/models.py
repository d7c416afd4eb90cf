"""The models of one training: their parameters' names, and which of them are not trained.

Held by weak references. Names are codes in the recorder's strings.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import nn

from holdfast.inside.discovery import named
from holdfast.inside.observers.parameters import Change, Untrained
from holdfast.signals.recorder import Recorder
from holdfast.signals.schema import MISSING_INT


class Models:
    """What is known of the models of one training."""

    def __init__(self, recorder: Recorder) -> None:
        self._strings = recorder.strings
        self.trained: dict[int, weakref.ref[torch.Tensor]] = {}  # all parameters of models and optimizers, by their id
        self._roots: list[weakref.ref[nn.Module]] = []
        self._names: dict[int, int] = {}
        self._texts: dict[int, str] = {}
        self._untrained = Untrained()

    def learn(self, roots: list[nn.Module]) -> None:
        """Take these models in place of those known so far."""
        self._roots = [weakref.ref(root) for root in roots]
        pairs = list(named(roots, "parameters"))
        codes = self._strings.codes([name for name, _ in pairs])
        self._names = {id(parameter): code for (_, parameter), code in zip(pairs, codes, strict=True)}
        self._texts = {code: name for (name, _), code in zip(pairs, codes, strict=True)}
        self.add(parameter for _, parameter in pairs)

    def add(self, parameters: Iterable[torch.Tensor]) -> None:
        """These parameters belong to the training."""
        self.trained.update({id(parameter): weakref.ref(parameter) for parameter in parameters})

    def roots(self) -> list[nn.Module]:
        """The models, as far as they are alive."""
        return [root for reference in self._roots if (root := reference()) is not None]

    def name_of(self, code: int) -> str:
        """The name of a parameter by its code."""
        return self._texts.get(code, "?")

    def names_of(self, parameters: list[torch.Tensor]) -> list[int]:
        """The codes of those that have a gradient."""
        return [self._names.get(id(parameter), MISSING_INT) for parameter in parameters if parameter.grad is not None]

    def newly_untrained(self, *, main: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> tuple[Change, ...]:
        """Why parameters are not trained, where that was not said before; see `Untrained.changes`.

        A model that has got other parameters since it was learned, such as a new head, is learned again.
        """
        if roots := self.roots():
            now = {id(parameter) for root in roots for parameter in root.parameters()}
            if now != self._names.keys():
                self.learn(roots)
        return tuple(self._untrained.changes(self.trained, self._names, main=main, others=others))
