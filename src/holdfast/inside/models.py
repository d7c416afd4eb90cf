"""The models of one training, held weakly: the names of their parameters, and which of them are not trained.

A name is stored as its code in the recorder's string table.
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
    """The models of one training."""

    def __init__(self, recorder: Recorder) -> None:
        self._strings = recorder.strings
        self.trained: dict[int, weakref.ref[torch.Tensor]] = {}  # all parameters of models and optimizers, by id
        self._roots: list[weakref.ref[nn.Module]] = []
        self._names: dict[int, int] = {}
        self._texts: dict[int, str] = {}
        self._untrained = Untrained()

    def learn(self, roots: list[nn.Module]) -> None:
        """Replace the models."""
        self._roots = [weakref.ref(root) for root in roots]
        pairs = list(named(roots, "parameters"))
        codes = self._strings.codes([name for name, _ in pairs])
        self._names = {id(parameter): code for (_, parameter), code in zip(pairs, codes, strict=True)}
        self._texts = {code: name for (name, _), code in zip(pairs, codes, strict=True)}
        self.add(parameter for _, parameter in pairs)

    def add(self, parameters: Iterable[torch.Tensor]) -> None:
        """Add parameters to the training."""
        self.trained.update({id(parameter): weakref.ref(parameter) for parameter in parameters})

    def roots(self) -> list[nn.Module]:
        """The models that are still alive."""
        return [root for reference in self._roots if (root := reference()) is not None]

    def name_of(self, code: int) -> str:
        """The name of a parameter by its code."""
        return self._texts.get(code, "?")

    def names_of(self, parameters: list[torch.Tensor]) -> list[int]:
        """The name codes of the parameters that have a gradient."""
        return [self._names.get(id(parameter), MISSING_INT) for parameter in parameters if parameter.grad is not None]

    def newly_untrained(self, *, main: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> tuple[Change, ...]:
        """Why parameters are not trained, where that is news; see `Untrained.changes`.

        A model whose parameters have changed, such as one with a new head, is learned again.
        """
        if roots := self.roots():
            current = {id(parameter) for root in roots for parameter in root.parameters()}
            if current != self._names.keys():
                self.learn(roots)
        return tuple(self._untrained.changes(self.trained, self._names, main=main, others=others))
