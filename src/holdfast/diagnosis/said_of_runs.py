"""What a finding in the tables of a run of ours means, as a sentence with its numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.detectors.finding import Finding

_WHY = {
    "no-gradient": "{names} gets no gradient, though an optimizer holds it",
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
    since = "from the first step" if not found["onset"] else f"since step {found['onset']:,}"
    return (
        f"the gradients of the first {found['layers']} of {found['of']} layers, up to {found['last_dead']}, are exactly 0 {since}"
    )


def _vanishing(finding: Finding) -> str:
    found = finding.evidence
    return f"gradient norm {found['first']:.1e} in the first of {found['layers']} layers, {found['last']:.1e} in the last"


def _constant(finding: Finding) -> str:
    if "field" in finding.evidence:
        return f"every sample of every batch is the same (field {finding.evidence['field']})"
    return f"layer {finding.evidence['layer']} sees the same input at every step (norm {finding.evidence['input_norm']:.3g})"


def _unshuffled(finding: Finding) -> str:
    found = finding.evidence
    if "repeats" in found:
        sort = ", and sorted by label" if found["sorted"] else ""
        return f"{found['repeats']} epochs started with the same batch: the data is not shuffled{sort}"
    order = "sorted, perhaps by label" if found["sorted"] else "in the same order each time"
    alike = f"correlation {found['same_each_pass']:.2f}"
    return f"the loss curve repeats in every epoch of {found['batches']} batches ({alike}): the data is {order}"


def _plateau(finding: Finding) -> str:
    found = finding.evidence
    if "lr_before" in found:
        fell = f"the learning rate fell from {found['lr_before']:.3g} to {found['lr']:.3g} at step {found['onset']:,}"
        return f"{fell}, and the loss stopped falling ({found['loss']:.3g})"
    falling = f"while the loss was still falling ({found['loss']:.3g})"
    return f"the learning rate is {found['lr']:.3g} since step {found['onset']:,}, {falling}"


def _mismatch(finding: Finding) -> str:
    found = finding.evidence
    here = f"mean {found['mean']:.3g}, deviation {found['deviation']:.3g}"
    there = f"mean {found['held_out_mean']:.3g}, deviation {found['held_out_deviation']:.3g}"
    return f"training inputs have {here}; held-out inputs {there} (field {found['field']})"


def _leak(finding: Finding) -> str:
    found = finding.evidence
    seen = f"{found['known']} of {found['samples']} sampled held-out samples are in training batches too"
    return f"{seen}; an estimated {100 * found['share']:.0f} % of the held-out data is in the training data"


def _growth(finding: Finding) -> str:
    found = finding.evidence
    each = f"{found['bytes_per_step'] / 1e6:.2g} MB more per step"
    return f"{each}: {_size(found['grown'])} so far, {_size(found['now'])} in total"


def _loading(finding: Finding) -> str:
    found = finding.evidence
    slow = f"; {100 * found['its_share']:.0f} % of it for worker {found['slow_worker']}" if "slow_worker" in found else ""
    share = f"{100 * found['share']:.0f} % of each step is spent waiting for data"
    return f"{share}, {1000 * found['wait_seconds']:.0f} ms a step{slow}"


def _too_good(finding: Finding) -> str:
    found = finding.evidence
    return f"the training loss is almost zero ({found['train']:.2g}), and {finding.series} is no higher ({found['held_out']:.2g})"


def _slower(finding: Finding) -> str:
    found = finding.evidence
    return f"a step takes {_seconds(found['now'])}, up from {_seconds(found['before'])} in the second quarter of the run"


def _on_cpu(finding: Finding) -> str:
    found = finding.evidence
    cards = "a GPU" if found["gpus"] == 1 else f"{found['gpus']} GPUs"
    return f"the machine has {cards} that the training does not use; a step takes {_seconds(found['step_seconds'])}"


def _idle_gpu(finding: Finding) -> str:
    return f"the GPU was busy for less than {100 * finding.evidence['utilisation']:.0f} % of the time in half of the samples"


def _ranks(finding: Finding) -> str:
    found = finding.evidence
    norms = ", ".join(f"rank {name[5:]} {value:.6g}" for name, value in found.items() if name.startswith("rank_"))
    beside = "though their gradients agree" if found["gradients_shared"] else "and so do their gradients"
    return f"the weights of the ranks differ (norms at step {finding.step:,}: {norms}), {beside}"


def _late(finding: Finding) -> str:
    found = finding.evidence
    share = f"{_seconds(found['wait_seconds'])} of a step of {_seconds(found['step_seconds'])}"
    waits = f"the other ranks wait {share} for rank {found['rank']}"
    return f"{waits}, which waits that much longer for its data" if found["by_data"] else waits


def _server(finding: Finding) -> str:
    found = finding.evidence
    if "server" not in found:
        return ended(finding)
    return f"{found['server']} stopped answering: {found['error']}"


def _torn(finding: Finding) -> str:
    return f"{finding.evidence['path']} is incomplete: {finding.evidence['why']}"


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _weights(finding: Finding) -> str:
    found = finding.evidence
    if "parameter" in found:
        went = f"went from {found['weight_norm_before']:.3g} to {found['weight_norm']:.3g}"
        between = f"between steps {found['onset'] - 1:,} and {found['seen_at']:,}"
        return f"the norm of {found['parameter']} {went} {between}; the loss does not show it"
    return f"since step {found['onset']:,} no step was finite ({found['steps_in_a_row']} in a row), whatever the batch"


def _hung(finding: Finding) -> str:
    return str(finding.evidence["say"])


def ended(finding: Finding) -> str:
    """How a command died."""
    found = finding.evidence
    error = f": {found['error']}" if found.get("error") else ""
    grown = ""
    if found.get("memory_last", 0) > 1.2 * found.get("memory_first", 0) > 0:
        grown = f"; its memory grew from {_size(found['memory_first'])} to {_size(found['memory_last'])}"
    return f"{found['ended']} after step {finding.step:,} (exit {found['exit_code']}){error}{grown}"


def _size(count: Any) -> str:
    return f"{count / 1e9:.2g} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


SENTENCES: dict[str, Callable[[Finding], str]] = {
    "parameters-not-trained": _untrained,
    "dead-units": _dead,
    "gradient-vanishing": _vanishing,
    "constant-predictions": _constant,
    "unshuffled-data": _unshuffled,
    "loss-plateau": _plateau,
    "preprocessing-mismatch": _mismatch,
    "split-leak": _leak,
    "host-memory-growth": _growth,
    "gpu-memory-growth": _growth,
    "slow-loading": _loading,
    "too-good": _too_good,
    "non-finite-weights": _weights,
    "slow-step": _slower,
    "computing-on-cpu": _on_cpu,
    "low-gpu-utilisation": _idle_gpu,
    "rank-divergence": _ranks,
    "straggler": _late,
    "tracker-unreachable": _server,
    "checkpoint-torn": _torn,
    "hang": _hung,
    "loader-stall": _hung,
    "collective-stall": _hung,
}
