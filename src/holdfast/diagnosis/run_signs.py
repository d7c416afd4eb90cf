"""Signs in the tables of a Holdfast run that support one cause or contradict another, each with its numbers in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.diagnosis.end_signs import (
    of_death,
    of_gpu_limit,
    of_host_memory,
    of_loading,
    of_own_error,
    of_ranks,
    of_saving,
    of_torn_file,
    of_tracker,
)
from holdfast.signals.curves import Curves
from holdfast.units import size

Sign = tuple[str, str]
_TINY, _USUAL, _HUGE = 1e-5, (3e-5, 3e-2), 0.1  # of the weights, that one update changes
_LARGE_ENOUGH = 3e-4  # of the weights: hundreds of such updates teach something, if there is anything to learn
_BEYOND_UPDATES = 1e8  # times the norm of the step before; nets of 3 to 14 layers, rate raised 100-fold: 2.5e4 at most
_CONTINUES = 5  # steps
_INDEXED = re.compile(r"index -?\d+ is out of bounds for dimension \d+ with size \d+")
_TARGET = re.compile(r"Target (-?\d+) is out of bounds|t >= 0 && t < n_classes")
_EXPLAIN = ("gradient-vanishing", "dead-units", "constant-predictions", "parameters-not-trained", "unshuffled-data")


def signs_of_run(curves: Curves, findings: Sequence[Finding]) -> dict[str, str]:
    """The signs that are present. `explained` is there when something was found that alone keeps a training from learning."""
    return {**dict(_of_updates(curves)), **dict(_of_saves(curves, findings)), **signs_of_findings(findings)}


def signs_of_findings(findings: Sequence[Finding]) -> dict[str, str]:
    """Those that the findings themselves hold."""
    signs: list[Sign] = []
    for finding in findings:
        evidence = finding.evidence
        of_itself = evidence.keys() & {"limit", "lr_before"} or evidence.get("why") == "unused-head"  # signs of nothing else
        alone = of_itself or finding.code == "ranks-differ"
        if (alone or finding.severity != "info") and (words := _OF.get(finding.code)) is not None:
            signs += words({"step": finding.step, **evidence})
        if finding.severity != "info" and finding.code in _EXPLAIN:
            signs.append(("explained", ""))
    return dict(signs)


def _of_saves(curves: Curves, findings: Sequence[Finding]) -> Iterable[Sign]:
    """Whether a training whose checkpoint was bad continued as before."""
    saved = [
        finding.step
        for finding in findings
        if finding.code == "checkpoint-non-finite" and "in_a_row" not in finding.evidence  # that is the training's own state
    ]
    loss = curves.train_loss
    if saved and loss is not None:
        after = loss.values[loss.steps > min(saved)]
        if len(after) >= _CONTINUES and np.isfinite(after).all():
            yield "training-goes-on", f"the loss has been finite in all {len(after)} steps since"
        elif not len(after) and len(loss.values) >= _CONTINUES and np.isfinite(loss.values[-_CONTINUES:]).all():
            yield "training-goes-on", "the loss was finite up to the last step before the save"


def _of_updates(curves: Curves) -> Iterable[Sign]:
    curve = next((one for one in curves.curves if one.name == "update_ratio" and one.role == "other"), None)
    if curve is None or len(sizes := curve.finite().values) < 3:
        return
    usual, rate = float(np.median(sizes)), next(iter(curves.of("lr")), None)
    rate_is_zero = rate is not None and not rate.finite().values.any()
    if usual == 0.0 and not rate_is_zero:
        yield "no-update", "updates change nothing, though the learning rate is not 0"
        if next(iter(curves.of("norm")), None) is None:
            yield "optimizer-misses-some", "no parameter of the optimizer ever gets a gradient"
    elif 0.0 < usual < _TINY:
        yield "lr-tiny", f"an update changes the weights by {usual:.1e} of their size (typical: 1e-3)"
    elif usual > _HUGE:
        yield "lr-huge", f"an update changes the weights by {100 * usual:.0f} % of their size (typical: 0.1 %)"
    elif _USUAL[0] < usual < _USUAL[1]:
        yield "updates-usual", f"updates are of normal size ({usual:.1e} of the weights)"
    if usual >= _LARGE_ENOUGH:
        yield "updates-large-enough", ""


def _not_learning(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    if "update_ratio" not in evidence:
        yield from _schedule(evidence)
        return
    if not evidence.get("lr"):
        yield "lr-zero", "the learning rate is 0"
    elif evidence["update_ratio"]:
        yield "lr-tiny", f"an update changes the weights by {float(evidence['update_ratio']):.1e} of their size (typical: 1e-3)"
    else:
        yield "no-update", "updates change nothing, though the learning rate is not 0"


def _untrained(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    names = ", ".join(map(str, evidence.get("parameters") or ()))
    if "ended" in evidence:  # with an error of torch's about the loss
        if evidence.get("loss") is not None:
            yield "losses-had-a-graph", "the losses of earlier steps were computed from the model"
    elif evidence.get("why") == "no-optimizer":
        yield "optimizer-misses-some", f"no optimizer holds {names}"
        is_all = evidence.get("count") == evidence.get("of")
        yield "left-out-behind", "the optimizer holds no parameter of the model" if is_all else "the layers before are trained"
    elif evidence.get("why") == "unused-head":
        yield "loss-skips-head", "all other parameters get gradients"
    else:
        yield "requires-no-gradient", f"no gradient reaches {names}"


def _dead(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    if "parameter" in evidence:
        yield "units-dead", ""
        yield "weights-jumped", f"the norm of {evidence['parameter']} jumped between two samples"
        return
    yield "units-dead", f"the gradients of {evidence.get('last_dead')} and all before it are exactly 0"
    if not evidence.get("onset"):
        yield "dead-from-the-start", "they have been 0 since the first step"


def _vanishing(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    ratio = float(evidence.get("ratio") or 0)
    yield "gradients-vanish", f"the gradient norm of the first layers is {ratio:.0e} of that of the last"


def _constant(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    if evidence.get("same_input"):
        yield "input-constant", f"{evidence.get('layer') or 'the model'} gets the same input at every step"


def _memory(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    yield "memory-grows", f"memory grows by {size(float(evidence.get('bytes_per_step') or 0))} per step and does not level off"
    if float(evidence.get("workers") or 0) > float(evidence.get("now") or 0):
        yield (
            "workers-hold-most",
            f"the loader's workers hold {size(evidence['workers'])}, the training {size(evidence['now'])}",
        )
    if float(evidence.get("in_evaluation") or 0) > 0.5:
        yield "grows-in-evaluation", f"{100 * evidence['in_evaluation']:.0f} % of the growth came during evaluation"
    if evidence.get("first_epoch"):
        yield "grows-with-epoch-one", "the first epoch has not finished"


def _out_of_memory(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    """From the sizes that were noted while the error was handled, in bytes."""
    yield from of_gpu_limit(evidence)
    requested, allocated, reserved, free, total = (
        float(evidence.get(name) or 0) for name in ("asked_for", "allocated", "reserved", "free", "total")
    )
    if not total:
        return
    idle, others = reserved - allocated, total - free - reserved
    if idle > max(requested, 0.05 * total):
        yield "reserved-but-unused", f"{size(idle)} are reserved but unused, more than the {size(requested)} requested"
    if free and reserved and others > 0.1 * total:
        yield "other-processes", f"other processes hold {size(others)} of the GPU's {size(total)}"
    if requested > total:
        yield "one-sample-fills-it", f"one tensor of {size(requested)} was requested, more than the whole GPU has"
    elif evidence.get("step") == 0 and allocated > 0.7 * total:
        yield "fixed-part-fills-it", f"{size(allocated)} of {size(total)} were allocated before the first step was finished"


def _loading(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    if evidence.get("slow_worker") is not None:
        share = 100 * float(evidence.get("worker_fraction") or 0)
        yield "one-worker-slow", f"{share:.0f} % of the waiting is for worker {evidence['slow_worker']}"
    workers, cores = evidence.get("workers"), evidence.get("cores")
    if workers == 0:
        yield "no-loader-workers", "the loader has no workers: batches are loaded between the steps"
    elif workers and cores and workers >= cores:
        yield "worker-on-every-core", f"{workers} workers share {cores} cores"
    if evidence.get("persistent_workers"):
        yield "workers-persist", ""
    if evidence.get("pin_memory"):
        yield "batches-pinned", ""
    if evidence.get("on_gpu") is False:
        yield "no-gpu-in-use", "the training computes on the CPU"


def _out_of_range(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    """Which of the two it was: the losses of torch name the target that is no class."""
    named = _TARGET.search(str(evidence.get("error") or ""))
    if named:
        label = f"label {named.group(1)}" if named.group(1) else "a label"
        yield "labels-beyond", f"the loss got {label}, which is not a class"
    elif evidence.get("known_text") == "embedded-label-out-of-range":
        yield "labels-beyond", "the embedding of the classes has no row for a label"
    elif indexed := _INDEXED.search(str(evidence.get("error") or "")):
        yield "no-embedding", f"{indexed.group()}: a tensor was indexed, not an embedding"


def _scaled(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    there, here = (f"{float(evidence.get(name) or 0):.3g}" for name in ("held_out_deviation", "deviation"))
    yield "statistics-differ", f"held-out inputs have a std of {there}, training inputs {here}"


def _at_once(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    before, first = (float(evidence.get(name) or 0.0) for name in ("step_before", "first"))
    if "limit" in evidence:  # of the guard: the largest norm lately
        before, first = float(evidence["limit"]), float(evidence.get("norm") or 0.0)
    if 0.0 < before * _BEYOND_UPDATES < first:
        yield "weights-jumped", f"the gradient norm went from {before:.3g} to {first:.3g} in one step; no update does that"
        yield "jumped-at-once", ""


def _diverged(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    if "weight_norm_before" in evidence:  # which is written down only where they jumped
        before, now = (f"{float(evidence[name]):.3g}" for name in ("weight_norm_before", "weight_norm"))
        yield "weights-jumped", f"the norm of the weights jumped from {before} to {now}"


def _oversized(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    if "bad_tensors" in evidence:
        yield "weights-unsound", "the state of the training holds NaN or Inf"
    if "weight_norm_before" in evidence:
        before, now = (f"{float(evidence[name]):.3g}" for name in ("weight_norm_before", "weight_norm"))
        whose = evidence.get("parameter") or "the weights"
        yield "weights-jumped", f"the norm of {whose} jumped from {before} to {now}; no update does that"
        if "parameter" in evidence:
            yield "training-goes-on", "the loss is finite"


def _leaked(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    if evidence.get("same_samples"):
        yield (
            "same-samples",
            f"{evidence.get('seen_in_training')} of {evidence.get('samples')} held-out samples were seen in training batches",
        )


def _order(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    if evidence.get("sorted"):
        same = "every epoch starts with the same batch" if "repeats" in evidence else "the loss curve repeats in every epoch"
        yield "period-of-an-epoch", same
        yield "labels-in-order", "neighbouring batches are similar"


def _schedule(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    if "lr_before" in evidence:
        before, now = float(evidence["lr_before"]), float(evidence.get("lr") or 0)
        yield "lr-dropped", f"the learning rate fell from {before:.3g} to {now:.3g} in one step"
    if "peak_lr" in evidence:
        peak, now = float(evidence["peak_lr"]), float(evidence.get("lr") or 0)
        yield "lr-decayed", f"the learning rate fell from {peak:.3g} to {now:.3g}"
        yield "was-falling", "the loss was still falling until then"


_WAITS = {  # what a stuck worker waits for
    "sleep": ("worker-waits", "the worker sleeps: a time.sleep, or a retry"),
    "process": ("worker-waits", "the worker waits for another process"),
    "lock": ("locks-wait", "the worker waits for a lock"),
    "file": ("waits-for-disk", "the worker waits for a file"),
    "network": ("waits-for-network", "the worker waits for a network response"),
    "compute": ("computes-on", "the worker computes without finishing"),
}
_STANDS = {  # what the stacks of a hang showed
    "worker-died": ("workers-fewer", "a loader worker died"),
    "no-workers": ("workers-fewer", "the loader's workers died"),
    "worker": ("worker-stands", "the worker is alive but stuck in the data set's code"),
    "loading": ("worker-stands", "the batch is loaded in the main process"),
    "deadlock": ("locks-wait", "two threads wait for each other"),
    "lock": ("locks-wait", "a thread waits for a lock"),
    "loop": ("computes-on", "it computes without finishing"),
    "gil": ("computes-on", "compiled code holds the interpreter lock"),
    "wait": ("waits-in-script", "the script itself is waiting"),
    "missing": ("collectives-differ", "a rank did not reach the collective"),
    "mismatch": ("collectives-differ", "the ranks are in different collectives"),
}


def _hung(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    sign = _STANDS.get(str(evidence.get("kind")))
    if evidence.get("lock_in_c"):
        yield "locks-wait", "compiled code waits for a lock, or for another thread"
    elif sign is not None:
        yield sign
    missing = _STANDS.get(str(evidence.get("missing_kind")))
    if missing is not None:
        yield missing[0], f"the missing rank: {missing[1]}"
    if evidence.get("cut_off"):
        yield "packets-lost", f"packets to {evidence['cut_off']} are not acknowledged"
    yield from of_ranks(evidence)
    waits = _WAITS.get(str(evidence.get("waits_for")))
    if waits is not None:
        yield waits


def _divergence(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    if not evidence.get("onset"):
        yield "from-the-start", "the norms differed at the first comparison"
    if not evidence.get("gradients_shared"):
        yield "gradients-differ", "the gradients of the ranks differ too"


def _set_up(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    sign = {"order of the data": "samplers-differ", "random seed": "seeds-differ", "clock": "clocks-differ"}
    yield sign.get(str(evidence.get("what")), "versions-differ"), f"rank {evidence.get('rank')}: {evidence.get('value')}"


def _late(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    if evidence.get("data_bound"):
        yield "waits-for-disk", f"rank {evidence.get('rank')} waits longer for its data than the others"
    else:
        yield "late-by-its-own-work", f"rank {evidence.get('rank')} does not wait longer for its data than the others"


def _slower(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    if evidence.get("on_gpu") is False:
        yield "no-gpu-in-use", "the training computes on the CPU"


def _on_cpu(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    version = str(evidence.get("torch") or "")
    if version.endswith("+cpu"):
        yield "built-for-cpu", f"torch {version} is a build for CPUs"
    elif "+cu" in version:
        yield "built-for-cuda", f"torch {version} is built for CUDA"


_OF = {
    "checkpoint-torn": of_torn_file,
    "holdfast-degraded": of_own_error,
    "checkpoint-incompatible": of_loading,
    "checkpoint-not-saved": of_saving,
    "tracker-unreachable": of_tracker,
    "process-died": of_death,
    "hang": _hung,
    "loader-stall": _hung,
    "collective-stall": _hung,
    "not-learning": _not_learning,
    "parameters-not-trained": _untrained,
    "dead-units": _dead,
    "gradient-vanishing": _vanishing,
    "constant-predictions": _constant,
    "host-memory-growth": _memory,
    "gpu-memory-growth": _memory,
    "gpu-out-of-memory": _out_of_memory,
    "host-out-of-memory": of_host_memory,
    "rank-divergence": _divergence,
    "straggler": _late,
    "ranks-differ": _set_up,
    "slow-step": _slower,
    "computing-on-cpu": _on_cpu,
    "slow-loading": _loading,
    "unshuffled-data": _order,
    "gradient-explosion": _at_once,
    "loss-divergence": _diverged,
    "metric-collapse": _diverged,
    "non-finite-weights": _oversized,
    "preprocessing-mismatch": _scaled,
    "token-out-of-range": _out_of_range,
    "device-side-assert": _out_of_range,
    "split-leak": _leaked,
    "loss-plateau": _schedule,
}
