"""What a finding in the tables of a run of ours means, as a sentence with its numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.detectors.finding import Finding

_WHY = {
    "no-gradient": "no gradient comes to {names}, though the optimizer holds it",
    "no-optimizer": "no optimizer holds {names}",
    "frozen": "{names} is frozen",
}


def _untrained(finding: Finding) -> str:
    found = finding.evidence
    names = ", ".join(map(str, found["parameters"]))
    more = f" and {found['count'] - len(found['parameters'])} more" if found["count"] > len(found["parameters"]) else ""
    return f"{_WHY[found['why']].format(names=names + more)} ({found['count']} of {found['of']} parameters)"


def _dead(finding: Finding) -> str:
    found = finding.evidence
    since = "from the first step on" if not found["onset"] else f"since step {found['onset']:,}"
    return (
        f"the gradients of the first {found['layers']} of {found['of']} layers, up to {found['last_dead']}, are exactly 0 {since}"
    )


def _vanishing(finding: Finding) -> str:
    found = finding.evidence
    return f"gradient norm {found['first']:.1e} in the first of {found['layers']} layers, {found['last']:.1e} in the last ones"


def _constant(finding: Finding) -> str:
    return f"layer {finding.evidence['layer']} sees the same input at every step (norm {finding.evidence['input_norm']:.3g})"


def _unshuffled(finding: Finding) -> str:
    found = finding.evidence
    order = "sorted by something, such as the label" if found["sorted"] else "in the same order each time"
    alike = f"correlation {found['same_each_pass']:.2f}"
    return (
        f"the loss goes through the same ups and downs in every pass of {found['batches']} batches ({alike}): the data is {order}"
    )


def _plateau(finding: Finding) -> str:
    found = finding.evidence
    falling = f"while the loss was still falling ({found['loss']:.3g})"
    return f"the learning rate is {found['lr']:.3g} since step {found['onset']:,}, {falling}"


def _growth(finding: Finding) -> str:
    found = finding.evidence
    each = f"{found['bytes_per_step'] / 1e6:.2g} MB more with every step"
    return f"{each}: {_size(found['grown'])} so far, {_size(found['now'])} in all"


def _loading(finding: Finding) -> str:
    found = finding.evidence
    slow = f"; {100 * found['its_share']:.0f} % of it for worker {found['slow_worker']}" if "slow_worker" in found else ""
    share = f"{100 * found['share']:.0f} % of the time goes by in waiting for data"
    return f"{share}, {1000 * found['wait_seconds']:.0f} ms a step{slow}"


def _too_good(finding: Finding) -> str:
    found = finding.evidence
    return (
        f"the training loss is all but gone ({found['train']:.2g}), and {finding.series} is no higher ({found['held_out']:.2g})"
    )


def _weights(finding: Finding) -> str:
    found = finding.evidence
    return f"from step {found['onset']:,} on no step gave finite numbers ({found['steps_in_a_row']} in a row), whatever the batch"


def _size(count: Any) -> str:
    return f"{count / 1e9:.2g} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


SENTENCES: dict[str, Callable[[Finding], str]] = {
    "parameters-not-trained": _untrained,
    "dead-units": _dead,
    "gradient-vanishing": _vanishing,
    "constant-predictions": _constant,
    "unshuffled-data": _unshuffled,
    "loss-plateau": _plateau,
    "host-memory-growth": _growth,
    "gpu-memory-growth": _growth,
    "slow-loading": _loading,
    "too-good": _too_good,
    "non-finite-weights": _weights,
}
