"""Which parameter and module is to blame for gradients that are not finite.

The backward pass goes from the loss to the first layer, and what is not finite stays so on its way. So the first bad parameter
in forward order is where it ended up; the last one is next to where it began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from holdfast.inside.discovery import plain_name


@dataclass(frozen=True, slots=True)
class FirstNonFinite:
    """The first bad parameter in forward order, and the module nearest to where it began (None: with the loss)."""

    parameter: str
    module: str
    began_in: str | None
    bad: int
    of: int
    words: str


def forward_order(model: nn.Module, executed: Sequence[str] = ()) -> list[str]:
    """Names of the parameters as the forward pass meets them: as registered, or as their modules were executed if known."""
    names = [plain_name(name) for name, _ in model.named_parameters()]
    if not executed:
        return names
    place = {plain_name(name): number for number, name in reversed(list(enumerate(executed)))}
    return sorted(names, key=lambda name: place.get(module_of(name), len(place)))


def module_of(parameter: str) -> str:
    """The module that holds a parameter; the model itself has no name."""
    return parameter.rpartition(".")[0]


def first_bad(order: Sequence[str], non_finite: Mapping[str, int], *, loss_finite: bool | None = None) -> FirstNonFinite | None:
    """Who is to blame, by the number of non-finite values in each gradient; parameters that are not named have no gradient.

    A number below zero counts as some. None if every gradient is finite.
    """
    known = [name for name in order if name in non_finite]
    known += [name for name in non_finite if name not in set(order)]
    bad = [place for place, name in enumerate(known) if non_finite[name] != 0]
    if not bad:
        return None
    first, last = known[bad[0]], known[bad[-1]]
    began_in: str | None = module_of(last)
    if loss_finite is False or bad[-1] == len(known) - 1:
        came_with_loss = loss_finite is False or (loss_finite is None and len(bad) == len(known))
        began_in = None if came_with_loss else began_in
    words = _words(known, bad, loss_finite=loss_finite)
    return FirstNonFinite(first, module_of(first), began_in, len(bad), len(known), words)


def _words(known: list[str], bad: list[int], *, loss_finite: bool | None) -> str:
    first, last = known[bad[0]], known[bad[-1]]
    where = module_of(last) or "the model itself"
    if loss_finite is False:
        return f"The loss itself is not finite: it began in the forward pass. First bad parameter: {first}."
    if len(bad) == len(known):
        if loss_finite is None:
            return "Every gradient is bad: it came with the loss, out of the forward pass or the loss function."
        return f"The loss is finite and every gradient is bad: it began in the backward pass of the loss or of {where}."
    following = known[bad[-1] + 1] if bad[-1] + 1 < len(known) else None
    if len(bad) == 1:
        return f"Only the gradient of {first} is bad: it began in the backward pass of {where}."
    if following is None:
        return f"{len(bad)} of {len(known)} gradients are bad, down to the last layer: it began at {where} or in the loss."
    upto = f"all {len(bad)} gradients up to {last}" if bad == list(range(len(bad))) else f"{len(bad)} gradients, the last {last},"
    return f"In forward order {upto} are bad and from {following} on they are finite: it began in the backward pass of {where}."
