"""Signs in the journal of a run that support one cause or contradict another: what the guard wrote down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Sign = tuple[str, str]
_ORDINARY = 10.0  # times the usual gradient norm, that single steps reach without harm
_OPERATIONS: dict[str, tuple[str, ...]] = {
    "log-of-zero": ("operation-log", "zero-in-log", "its input was zero or negative"),
    "division-by-zero": ("operation-division", "zero-divisor", "its divisor was zero"),
    "overflow": ("half-overflow",),
}
_SOON = 16  # steps: of several bad updates in a row only some are recorded


def signs_of_journal(around: Iterable[Mapping[str, Any]], onset: int) -> dict[str, str]:
    """What the guard wrote down at the step where it began."""
    around, signs = list(around), dict[str, str]()
    signs |= dict(_of_clipping(around, onset))
    for row in around:
        evidence = row.get("evidence") or {}
        norms, losses = (_floats(evidence.get(name)) for name in ("norm_before", "loss_before"))
        if row.get("kind") != "finding" or not onset <= int(row.get("step") or 0) < onset + _SOON:
            continue
        signs |= dict(_of_variables(evidence))
        signs |= dict(_of_first_bad(row)) if "weights-sound" not in signs and "weights-unsound" not in signs else {}
        if evidence.get("input") == "finite" and norms and max(norms) < _ORDINARY * float(np.median(norms)):
            loss = f"loss {losses[-1]:.3g}, " if losses else ""
            signs["was-as-usual"] = f"the batch was finite, and the step before was normal ({loss}gradient norm {norms[-1]:.3g})"
    return signs


def _of_clipping(around: Sequence[Mapping[str, Any]], onset: int) -> Iterable[Sign]:
    """One update that the guard clipped, and no other: the next batches gave the usual gradients."""
    exploded = [row for row in around if row.get("kind") == "finding" and row.get("code") == "gradient-explosion"]
    near = [row for row in exploded if onset <= int(row.get("step") or 0) < onset + 4 * _SOON]
    if len(near) == 1 and "limit" in (near[0].get("evidence") or {}) and int(near[0].get("step") or 0) == onset:
        norm, limit = (float(near[0]["evidence"].get(name) or 0) for name in ("norm", "limit"))
        yield "one-update-only", f"only one update had such a large norm: {norm:.3g} (clipped to {limit:.3g})"


def _of_first_bad(row: Mapping[str, Any]) -> Iterable[Sign]:
    """What the weights held before the first bad update, and whether only its gradients were bad."""
    evidence = row.get("evidence") or {}
    weights, loss = str(evidence.get("weights") or "unknown"), evidence.get("loss")
    if weights == "finite":
        yield "weights-sound", "the weights were finite before that update"
    elif weights != "unknown":
        yield "weights-unsound", f"before the update {weights}"
    batch = {"finite": " and the batch were", "unknown": " was"}.get(str(evidence.get("input")))
    if row.get("code") == "non-finite-gradient" and isinstance(loss, (int, float)) and batch is not None:
        yield "only-the-gradient", f"the loss ({loss:.3g}){batch} finite, the gradients were not"
        if evidence.get("began_in"):
            yield "began-in-a-layer", f"the first NaN or Inf came in the backward pass of {evidence['began_in']}"


def _floats(values: Any) -> list[float]:
    """The numbers of a history; none if one of them is none, or not finite."""
    listed = list(values) if isinstance(values, list) else []
    return listed if all(isinstance(value, (int, float)) and np.isfinite(value) for value in listed) else []


def _of_variables(evidence: Mapping[str, Any]) -> Iterable[Sign]:
    """What the loop's own variables held at a bad update."""
    if evidence.get("half"):
        yield "half-precision", "parts of the model run in float16, whose maximum is 65504"
    if evidence.get("input_max"):
        yield "beyond-half", f"a variable of the loop holds values up to {float(evidence['input_max']):.3g}"
    if operation := evidence.get("operation"):
        sign, *detail = _OPERATIONS.get(str(evidence.get("operation_why")), ("operation-other",))
        yield sign, f"the first NaN or Inf came from `{operation}`"
        if detail:
            yield detail[0], detail[1]
