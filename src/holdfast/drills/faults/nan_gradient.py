"""A layer's gradient is NaN though the loss is not: the derivative of a root at zero, a kernel with a fault."""

from __future__ import annotations

from holdfast.drills.fault import CannotHappen, Expected, Fault
from holdfast.drills.injection.context import FaultContext


class NanGradient(Fault):
    """All gradients of one layer become NaN, after a backward pass that went well."""

    code = "nan-gradient"
    description = "the gradients of one layer are NaN once"
    expected = Expected(
        findings=("non-finite-gradient", "non-finite-loss", "non-finite-weights"),
        causes=("division-by-zero", "bad-batch"),
        survivable=True,
    )

    def gradients(self, context: FaultContext) -> None:
        """Fill those of the layer in the middle."""
        gradients = [weight.grad for weight in context.weights() if weight.grad is not None]
        if not gradients:
            raise CannotHappen("no layer has a gradient")
        gradients[len(gradients) // 2].fill_(float("nan"))
