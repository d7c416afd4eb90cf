"""Inputs and labels do not belong together: one of the two was shuffled alone."""

from __future__ import annotations

from typing import Any

import torch

from holdfast.drills.fault import CannotHappen, Expected, Fault
from holdfast.drills.injection.context import FaultContext


class ShuffledLabels(Fault):
    """Shuffle the labels of every batch to learn from; those that are held out stay right."""

    code = "shuffled-labels"
    description = "the labels of the training data are shuffled"
    expected = Expected(
        findings=("not-learning", "overfitting", "underfitting"), causes=("labels-wrong", "labels-unrelated"), survivable=False
    )
    needs = ("labels",)
    lasting = True
    from_start = True

    def batch(self, batch: Any, context: FaultContext) -> Any:
        """In another order each time, without touching the generators of the script."""
        if isinstance(batch, dict) and not {"boxes", "bboxes"}.isdisjoint(batch):
            raise CannotHappen("the labels are classes of boxes: the boxes are still learned, and the loss falls")

        def shuffle(labels: torch.Tensor) -> torch.Tensor:
            order = context.random.sample(range(labels.numel()), labels.numel())
            return labels.view(-1)[order].view(labels.shape)

        return context.change_labels(batch, shuffle)
