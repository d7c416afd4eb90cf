"""A label beyond the last class: classes counted from 1, a mark for `ignore` that the loss does not know."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from holdfast.drills.fault import CannotHappen, Expected, Fault
from holdfast.drills.injection.context import FaultContext

_UNKNOWN = 1_000_000


class LabelOutOfRange(Fault):
    """One label of a batch names a class that does not exist. Losses of torch raise an error, those by hand give Inf."""

    code = "label-out-of-range"
    description = "one label of a batch is beyond the last class"
    expected = Expected(
        findings=("process-died", "non-finite-loss", "token-out-of-range"),
        causes=("labels-out-of-range", "bad-batch"),
        survivable=True,
        by_loss=True,
    )
    needs = ("labels",)

    def batch(self, batch: Any, context: FaultContext) -> Any:
        """Change the first label."""
        beyond = _classes(context)

        def corrupt(labels: torch.Tensor) -> None:
            if labels.is_floating_point():
                raise CannotHappen("the labels are no classes but masks or values")
            labels.view(-1)[0] = beyond

        return context.change_labels(batch, corrupt)


def _classes(context: FaultContext) -> int:
    """As many as the last layer gives out."""
    try:
        return int(context.layers(nn.Linear)[-1][1].out_features)
    except CannotHappen:
        return _UNKNOWN
