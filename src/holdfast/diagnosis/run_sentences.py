"""One sentence for each finding in the tables of a run, with its numbers."""

from __future__ import annotations

import os
from collections.abc import Callable

from holdfast.detectors.finding import Finding
from holdfast.signals.metric_direction import metric_name
from holdfast.units import count, size

_WHY = {
    "no-gradient": "no gradient reaches {names}, though an optimizer holds {them}",
    "no-optimizer": "no optimizer holds {names}",
    "frozen": "{names} {are} frozen",
    "unused": "the model has {names}, but its forward pass does not use {them}",
    "unused-head": "the loss does not use {names}; all other parameters get gradients",
}


def _untrained(finding: Finding) -> str:
    evidence = finding.evidence
    names = ", ".join(map(str, evidence["parameters"]))
    more = (
        f" and {evidence['count'] - len(evidence['parameters'])} more" if evidence["count"] > len(evidence["parameters"]) else ""
    )
    them, are = ("it", "is") if evidence["count"] == 1 else ("them", "are")
    why = _WHY[evidence["why"]].format(names=names + more, them=them, are=are)
    return f"{why} ({evidence['count']} of {evidence['of']} parameters)"


def _dead(finding: Finding) -> str:
    evidence = finding.evidence
    since = "from the first step" if not evidence["onset"] else f"since step {evidence['onset']:,}"
    if "parameter" in evidence:
        before, after = (float(evidence[name]) for name in ("weight_norm_before", "weight_norm"))
        jumped = f"the norm of {evidence['parameter']} jumped from {before:.3g} to {after:.3g}"
        return f"the gradients of {evidence['last_dead']} are exactly 0 {since}: {jumped}"
    layers = f"the first {evidence['layers']} of {evidence['of']} layers, up to {evidence['last_dead']}"
    return f"the gradients of {layers}, are exactly 0 {since}"


def _vanishing(finding: Finding) -> str:
    evidence = finding.evidence
    return (
        f"gradient norm {evidence['first']:.1e} in the first of {evidence['layers']} layers, {evidence['last']:.1e} in the last"
    )


def _constant(finding: Finding) -> str:
    if "field" in finding.evidence:
        field = finding.evidence["field"]
        return f"every sample of every batch is the same{f' (field {field})' if field else ''}"
    return f"layer {finding.evidence['layer']} gets the same input at every step (norm {finding.evidence['input_norm']:.3g})"


def _unshuffled(finding: Finding) -> str:
    evidence = finding.evidence
    if "repeats" in evidence:
        sort = ", and sorted by label" if evidence["sorted"] else ""
        return f"{evidence['repeats']} epochs started with the same batch: the data is not shuffled{sort}"
    order = "sorted, perhaps by label" if evidence["sorted"] else "in the same order each time"
    alike = f"correlation {evidence['same_each_pass']:.2f}"
    return f"the loss curve repeats in every epoch of {evidence['batches']} batches ({alike}): the data is {order}"


def _plateau(finding: Finding) -> str:
    evidence = finding.evidence
    if "lr_before" in evidence:
        fell = f"the learning rate fell from {evidence['lr_before']:.3g} to {evidence['lr']:.3g} at step {evidence['onset']:,}"
        return f"{fell}, and the loss stopped falling ({evidence['loss']:.3g})"
    falling = f"although the loss was still falling ({evidence['loss']:.3g})"
    return f"the learning rate has been {evidence['lr']:.3g} since step {evidence['onset']:,}, {falling}"


def _mismatch(finding: Finding) -> str:
    evidence = finding.evidence
    here = f"mean {evidence['mean']:.3g}, std {evidence['deviation']:.3g}"
    there = f"mean {evidence['held_out_mean']:.3g}, std {evidence['held_out_deviation']:.3g}"
    field = f" (field {evidence['field']})" if evidence["field"] else ""  # a batch that is one tensor has no fields
    return f"training inputs have {here}; held-out inputs {there}{field}"


def _leak(finding: Finding) -> str:
    evidence = finding.evidence
    seen = f"{evidence['seen_in_training']} of {evidence['samples']} sampled held-out samples are in training batches too"
    return f"{seen}; an estimated {100 * evidence['fraction']:.0f} % of the held-out data is in the training data"


def _growth(finding: Finding) -> str:
    evidence = finding.evidence
    each = f"memory grows by {size(evidence['bytes_per_step'])} per step"
    return f"{each}: {size(evidence['grown'])} so far, {size(evidence['now'])} in total"


def _loading(finding: Finding) -> str:
    evidence = finding.evidence
    slow = (
        f"; {100 * evidence['worker_fraction']:.0f} % of the wait is for worker {evidence['slow_worker']}"
        if "slow_worker" in evidence
        else ""
    )
    share = f"{100 * evidence['fraction']:.0f} % of each step is spent waiting for data"
    return f"{share}, {1000 * evidence['wait_seconds']:.0f} ms per step{slow}"


def _too_good(finding: Finding) -> str:
    evidence = finding.evidence
    train, held_out = f"{evidence['train']:.2g}", f"{evidence['held_out']:.2g}"
    return f"the training loss is almost zero ({train}), and {finding.series} is no higher ({held_out})"


def _slower(finding: Finding) -> str:
    evidence = finding.evidence
    return f"a step takes {_seconds(evidence['now'])}, up from {_seconds(evidence['before'])} in the second quarter of the run"


def _on_cpu(finding: Finding) -> str:
    evidence = finding.evidence
    cards = "a GPU" if evidence["gpus"] == 1 else f"{evidence['gpus']} GPUs"
    return f"the machine has {cards} that the training does not use; a step takes {_seconds(evidence['step_seconds'])}"


def _idle_gpu(finding: Finding) -> str:
    return f"the median GPU utilisation is {100 * finding.evidence['utilisation']:.0f} %"


def _ranks(finding: Finding) -> str:
    evidence = finding.evidence
    norms = ", ".join(f"rank {name[5:]} {value:.6g}" for name, value in evidence.items() if name.startswith("rank_"))
    beside = "though their gradients agree" if evidence["gradients_shared"] else "and so do their gradients"
    whose = (
        f"the weights of rank {evidence['rank']} differ from the others'"
        if "rank" in evidence
        else "the weights of the ranks differ"
    )
    return f"{whose} (norms at step {finding.step:,}: {norms}), {beside}"


def _set_up(finding: Finding) -> str:
    evidence = finding.evidence
    if evidence["what"] == "clock":
        return f"the clock of rank {evidence['rank']} is {evidence['value']} of the others'"
    return f"the {evidence['what']} of rank {evidence['rank']} is {evidence['value']} (other ranks: {evidence['others']})"


def _replicas(finding: Finding) -> str:
    evidence = finding.evidence
    names = {how: ", ".join(map(_replica, evidence[how])) for how in ("left", "joined") if evidence.get(how)}
    change = " and ".join(f"{who} {how}" for how, who in names.items()) or "the quorum changed"
    lost = f"lost {_seconds(evidence['seconds'])} and {count(int(evidence['batches']), 'batch', 'batches')}"
    num_replicas = int(evidence["replicas"])
    return f"{change} before step {finding.step:,}; {count(num_replicas, 'replica')} continue{'s' * (num_replicas == 1)}; {lost}"


def _replica(replica_id: str) -> str:
    """torchft appends a UUID to the name of a replica at each of its starts: eight letters of it are enough."""
    name, _, start = replica_id.rpartition(":")
    return f"{name}:{start[:8]}" if name else replica_id


def _late(finding: Finding) -> str:
    evidence = finding.evidence
    share = f"{_seconds(evidence['wait_seconds'])} of each {_seconds(evidence['step_seconds'])} step"
    waits = f"the other ranks wait {share} for rank {evidence['rank']}"
    return f"{waits}, which waits for its data" if evidence["data_bound"] else waits


def _server(finding: Finding) -> str:
    evidence = finding.evidence
    if "server" not in evidence:
        return ended(finding)
    return f"{evidence['server']} stopped answering: {evidence['error']}"


def _exploding(finding: Finding) -> str:
    evidence = finding.evidence
    if "normal" in evidence:
        since = f"since step {evidence['onset']:,} (normally {evidence['normal']:.3g})"
        return f"the gradient norm has been {evidence['norm']:.3g} {since}"
    return f"the gradient norm was {evidence['norm']:.3g}; the update was clipped to {evidence['limit']:.3g}"


def _clipping(finding: Finding) -> str:
    evidence = finding.evidence
    low, high = evidence["suggested"]
    clipped = f"{100 * evidence['clipped_fraction']:.0f} % of the updates are clipped at {evidence['limit']:.3g}"
    return f"{clipped}; the gradient norm is normally {evidence['normal']:.3g}: set a limit of {low:.2g} to {high:.2g}"


def _scaler(finding: Finding) -> str:
    evidence = finding.evidence
    fell = f"the loss scale is {evidence['scale']:.3g} (highest: {evidence['highest_scale']:.3g})"
    return f"{fell}, and {100 * evidence['skipped_fraction']:.0f} % of the steps were skipped"


def _metric(finding: Finding) -> str:
    evidence = finding.evidence
    best = f"the best was {evidence['best']:.3g} at step {evidence['best_step']:,}"
    values = evidence["values"][-4:] if "values" in evidence else (evidence["before"], evidence["value"])
    became = "fell" if values[-1] < values[0] else "got worse"
    name = metric_name(evidence["split"], evidence["metric"])
    return f"{name} {became}: {' → '.join(f'{value:.3g}' for value in values)}; {best}"


def _out_of_memory(finding: Finding) -> str:
    evidence = finding.evidence
    needed = f"needed {size(evidence['asked_for'])}" if "asked_for" in evidence else "memory ran out"
    free = f", {size(evidence['free'])} free" if "free" in evidence else ""
    batch = f", batch {evidence['batch_size']:,}" if evidence.get("batch_size") else ""
    parts = f", in {evidence['parts']} parts" if evidence["parts"] > 1 else ""
    why = f"; the step was not repeated: {evidence['not_repeated_because']}" if "not_repeated_because" in evidence else ""
    return f"{needed}{free}{batch}{parts}{why}"


def _not_saved(finding: Finding) -> str:
    evidence = finding.evidence
    times = f" ({evidence['in_a_row']} times in a row)" if evidence.get("in_a_row", 1) > 1 else ""
    return (
        f"could not save to {_shown(evidence['path'] if 'path' in evidence else evidence['folder'])}{times}: {evidence['error']}"
    )


def _not_zeroed(finding: Finding) -> str:
    return f"the gradients were never zeroed in the first {finding.evidence['updates']:,} updates"


def _torn(finding: Finding) -> str:
    return f"{_shown(finding.evidence['path'])} is incomplete: {finding.evidence['why']}"


def _own(finding: Finding) -> str:
    return f"{finding.evidence['what']}: {finding.evidence['error']}"


def _non_finite_file(finding: Finding) -> str:
    evidence = finding.evidence
    if "error" in evidence:  # of Holdfast's own, which was not written
        return str(evidence["error"]).rstrip(".")
    return f"{_shown(evidence['path'])} (step {finding.step:,}) has NaN or Inf in {count(evidence['bad_tensors'], 'tensor')}"


def _shown(path: str) -> str:
    """The path from here, if that is shorter."""
    return min(path, os.path.relpath(path), key=len)


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _weights(finding: Finding) -> str:
    evidence = finding.evidence
    if "parameter" in evidence:
        went = f"jumped from {evidence['weight_norm_before']:.3g} to {evidence['weight_norm']:.3g}"
        between = f"between steps {evidence['onset'] - 1:,} and {evidence['seen_at']:,}"
        return f"the norm of {evidence['parameter']} {went} {between}; the loss does not show it yet"
    if "evaluated_at" in evidence:
        lost = f"{metric_name(evidence['split'], evidence['metric'])} is NaN or Inf at step {evidence['evaluated_at']:,}"
        return f"the norm of the weights is no longer finite (it was {evidence['weight_norm_before']:.3g}); {lost}"
    if "bad_tensors" in evidence:
        return f"NaN or Inf in {count(int(evidence['bad_tensors'] or 1), 'tensor')} of the state at step {finding.step:,}"
    if "steps_in_a_row" not in evidence and "weights" in evidence:
        return f"{evidence['weights']}, at step {finding.step:,}"
    if "bad_losses" in evidence:
        bad = f"{evidence['bad_losses']} of the last {evidence['of']} losses are NaN, Inf or far too large"
        return f"the norm of the weights is no longer finite (it was {evidence['weight_norm_before']:.3g}); {bad}"
    if "weight_norm" in evidence:
        before = f"{evidence['weight_norm_before']:.3g}"
        return f"the norm of the weights was {before} until step {evidence['onset'] - 1:,} and has been infinite since"
    return f"no step has been finite since step {evidence['onset']:,} ({evidence['steps_in_a_row']} in a row)"


def _hung(finding: Finding) -> str:
    return str(finding.evidence["say"])


def ended(finding: Finding) -> str:
    """How a command died."""
    evidence = finding.evidence
    error = f": {evidence['error']}" if evidence.get("error") else ""
    grown = ""
    if evidence.get("memory_last", 0) > 1.2 * evidence.get("memory_first", 0) > 0:
        grown = f"; its memory grew from {size(evidence['memory_first'])} to {size(evidence['memory_last'])}"
    code = f" (exit {evidence['exit_code']})" if "exit_code" in evidence else ""  # a lost node has none
    return f"{evidence['ended'].rstrip('.')} after step {finding.step:,}{code}{error}{grown}"


SENTENCES: dict[str, Callable[[Finding], str]] = {
    "parameters-not-trained": _untrained,
    "dead-units": _dead,
    "gradients-not-zeroed": _not_zeroed,
    "gradient-explosion": _exploding,
    "clipping-every-step": _clipping,
    "clipping-never": _clipping,
    "scaler-collapse": _scaler,
    "metric-decline": _metric,
    "metric-collapse": _metric,
    "gpu-out-of-memory": _out_of_memory,
    "host-out-of-memory": _out_of_memory,
    "disk-full": _not_saved,
    "checkpoint-not-saved": _not_saved,
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
    "ranks-differ": _set_up,
    "replica-left": _replicas,
    "tracker-unreachable": _server,
    "checkpoint-torn": _torn,
    "holdfast-degraded": _own,
    "checkpoint-non-finite": _non_finite_file,
    "hang": _hung,
    "loader-stall": _hung,
    "collective-stall": _hung,
}
