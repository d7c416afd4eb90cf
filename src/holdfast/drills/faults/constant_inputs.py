"""Every sample is the same: one file read again and again, a field that was zeroed."""

from __future__ import annotations

from typing import Any

import torch

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.scene import Scene


class ConstantInputs(Fault):
    """All samples, also those that are held out, become the first one that was drawn."""

    code = "constant-inputs"
    what = "every sample reaches the model as the same numbers"
    expected = Expected(findings=("constant-predictions", "not-learning"), causes=("constant-input",))
    needs = ("float-inputs",)
    lasting = True
    from_start = True

    def __init__(self, strength: float | None = None) -> None:
        super().__init__(strength)
        self._first: dict[tuple[int, ...], torch.Tensor] = {}

    def batch(self, batch: Any, scene: Scene) -> Any:
        """Labels stay as they are."""
        return scene.change_inputs(batch, self._same)

    def held_out_batch(self, batch: Any, scene: Scene) -> Any:
        """The mistake is in the data set: evaluations have it too."""
        return scene.change_inputs(batch, self._same)

    def _same(self, numbers: torch.Tensor) -> None:
        if numbers.dim():
            numbers.copy_(self._first.setdefault(tuple(numbers.shape[1:]), numbers[0].clone()).expand_as(numbers))
