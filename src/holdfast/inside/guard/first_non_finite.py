"""Find where non-finite gradients came from: the parameter and module nearest to the origin.

The backward pass runs from the loss to the first layer and carries NaN along. So in forward order the last bad parameter is next
to the origin, and the first one is where it ended up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FirstNonFinite:
    """The first bad parameter in forward order, and the module where it began (None: in the loss)."""

    parameter: str
    module: str
    began_in: str | None
    bad: int
    of: int
    words: str


def module_of(parameter: str) -> str:
    """The module that holds a parameter; empty for the model itself."""
    return parameter.rpartition(".")[0]


def first_bad(order: Sequence[str], non_finite: Mapping[str, int], *, loss_finite: bool | None = None) -> FirstNonFinite | None:
    """Find the origin from the number of non-finite values in each gradient; None if all are finite.

    Parameters missing in `non_finite` have no gradient; a negative number means some. `order` is the forward order.
    """
    names = [name for name in order if name in non_finite]
    names += [name for name in non_finite if name not in set(order)]
    bad = [index for index, name in enumerate(names) if non_finite[name] != 0]
    if not bad:
        return None
    first, last = names[bad[0]], names[bad[-1]]
    from_loss = loss_finite is False or (loss_finite is None and len(bad) == len(names))
    words = _describe(names, bad, loss_finite=loss_finite)
    return FirstNonFinite(first, module_of(first), None if from_loss else module_of(last), len(bad), len(names), words)


def _describe(names: list[str], bad: list[int], *, loss_finite: bool | None) -> str:
    first, last = names[bad[0]], names[bad[-1]]
    module = module_of(last) or "the model itself"
    if loss_finite is False:
        return f"The loss is not finite: it began in the forward pass. First non-finite gradient: {first}."
    if len(bad) == len(names):
        if loss_finite is None:
            return "No gradient is finite: it began in the loss function or in the forward pass."
        return f"The loss is finite and no gradient is: it began in the backward pass of the loss or of {module}."
    if len(bad) == 1:
        return f"Only the gradient of {first} is not finite: it began in the backward pass of {module}."
    if bad[-1] + 1 == len(names):
        return (
            f"{len(bad)} of {len(names)} gradients are not finite, down to the last layer: it began in {module} or in the loss."
        )
    is_prefix = bad == list(range(len(bad)))
    which = f"all {len(bad)} gradients up to {last}" if is_prefix else f"{len(bad)} gradients, the last {last},"
    finite_from = names[bad[-1] + 1]
    return (
        f"In forward order {which} are not finite and from {finite_from} on they are: it began in the backward pass of {module}."
    )
