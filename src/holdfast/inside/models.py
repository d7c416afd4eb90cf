"""The models of one training, held weakly: the names of their parameters, and which of them are not trained.

A name is stored as its code in the recorder's string table.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import nn

from holdfast.inside.discovery import named
from holdfast.inside.observers.parameters import TRAINED, Change, status
from holdfast.signals.recorder import Recorder
from holdfast.signals.schema import MISSING_INT

_KERAS_STATISTICS = ("moving_mean", "moving_variance", "seed_generator_state")  # parameters to torch, but never trained


class Models:
    """The models of one training."""

    def __init__(self, recorder: Recorder) -> None:
        self._strings = recorder.strings
        self._roots: list[weakref.ref[nn.Module]] = []
        self._parts: list[weakref.ref[nn.Module]] = []  # that hold parameters; no reference to those: torch could not swap them
        self._names: dict[int, int] = {}
        self._texts: dict[int, str] = {}
        self._reported: dict[int, str] = {}  # the status of a parameter, by id

    def learn(self, roots: list[nn.Module]) -> None:
        """Replace the models."""
        self._roots = [weakref.ref(root) for root in roots]
        self._parts = [weakref.ref(part) for root in roots for part in root.modules() if part._parameters]
        pairs = list(named(roots, "parameters"))
        codes = self._strings.codes([name for name, _ in pairs])
        self._names = {id(parameter): code for (_, parameter), code in zip(pairs, codes, strict=True)}
        self._texts = {code: name for (name, _), code in zip(pairs, codes, strict=True)}

    def roots(self) -> list[nn.Module]:
        """The models that are still alive."""
        return [root for reference in self._roots if (root := reference()) is not None]

    def parameters(self) -> list[torch.Tensor]:
        """The parameters of the parts that are still alive, such as a backbone without its head."""
        parts = [part for reference in self._parts if (part := reference()) is not None]
        return [parameter for part in parts for parameter in part._parameters.values() if parameter is not None]

    def name_of(self, code: int) -> str:
        """The name of a parameter by its code."""
        return self._texts.get(code, "?")

    def names_of(self, parameters: list[torch.Tensor]) -> list[int]:
        """The name codes of the parameters that have a gradient."""
        return [self._names.get(id(parameter), MISSING_INT) for parameter in parameters if parameter.grad is not None]

    def newly_untrained(self, main: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> tuple[Change, ...]:
        """The parameters whose status changed: why they are not trained, or that they are now.

        `main` are those of the main optimizer, whose step comes next. Those that only `others` hold are skipped: they have no
        gradient between the steps of their own optimizer. A model with other parameters, such as a new head, is learned again.
        """
        roots = self.roots()
        parameters = {id(parameter): parameter for root in roots for parameter in root.parameters()}
        if parameters.keys() != self._names.keys():
            self.learn(roots)
        in_main, in_others = {id(parameter) for parameter in main}, {id(parameter) for parameter in others}
        changes = []
        for position, (key, parameter) in enumerate(parameters.items()):
            if key in in_main or key not in in_others:
                why = status(parameter, in_main=key in in_main)
                if why != TRAINED and self._texts.get(self._names[key], "").endswith(_KERAS_STATISTICS):
                    continue
                if self._reported.get(key, TRAINED) != why:
                    self._reported[key] = why
                    changes.append(Change(self._names[key], why, position, len(parameters)))
        return tuple(changes)
