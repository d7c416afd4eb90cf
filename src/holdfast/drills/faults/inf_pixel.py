"""One number of one batch is infinite: a logarithm of zero in the preparation, a broken sensor."""

from __future__ import annotations

from typing import Any

import torch

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.scene import Scene


class InfPixel(Fault):
    """A single number becomes Inf."""

    code = "inf-pixel"
    what = "a single number of one batch is infinite"
    expected = Expected(
        findings=("non-finite-loss", "non-finite-input", "non-finite-gradient", "non-finite-weights"),
        causes=("data-non-finite",),
        survivable=True,
    )
    needs = ("float-inputs",)

    def batch(self, batch: Any, scene: Scene) -> Any:
        """Change one number, somewhere in the middle of a sample."""

        def spoil(numbers: torch.Tensor) -> None:
            numbers.view(-1)[numbers.numel() // 2 + scene.random.randrange(max(1, numbers.shape[-1] // 2))] = float("inf")

        return scene.change_inputs(batch, spoil)
