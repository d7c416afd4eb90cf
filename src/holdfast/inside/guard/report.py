"""Write the guard's findings and actions to the journal, with the batch of a bad update; bounded, however many are bad.

On a GPU a bad update is known a step or two later; until then the batches of the steps in flight are kept.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from holdfast.inside.gradients.step_metrics import StepMetrics
from holdfast.inside.guard.failure_context import first_bad, input_evidence, variable_evidence, weight_evidence
from holdfast.inside.observers.batches import Batches, DrawnBatch, SavedBatches, describe, save_batches
from holdfast.signals.recorder import Recorder

_REPORT_FIRST = 3  # of a kind; after that one at every doubling
_MAX_IN_FLIGHT, _MAX_SAVED = 8, 3  # steps
_MAX_INDICES = 64  # in the journal; the file beside the batch has them all


class Report:
    """Writes the guard's findings and actions."""

    def __init__(
        self,
        recorder: Recorder,
        models: Callable[[], list[nn.Module]],
        name_of: Callable[[int], str],
        in_half: Callable[[], bool] = bool,
        batches: Batches | None = None,
    ) -> None:
        self._recorder, self._models, self._name_of, self._in_half = recorder, models, name_of, in_half
        self._batches = batches or Batches()
        self._counts: dict[str, int] = {}
        self._num_saved = 0
        self._in_flight: deque[tuple[int, list[DrawnBatch]]] = deque(maxlen=_MAX_IN_FLIGHT)

    def step_sent(self, step: int) -> None:
        """Keep the batches of a step until its metrics have arrived from the device."""
        self._in_flight.append((step, self._batches.current()))

    def bad_update(
        self,
        step: int,
        code: str,
        metrics: StepMetrics,
        past: list[tuple[float | None, float | None]],
        *,
        was_skipped: bool,
        at_once: bool = False,
        optimizer: str = "",
    ) -> None:
        """Report a non-finite update. `at_once`: the loop is still in that step, so its variables can be inspected.

        `optimizer` names one that is not the main one; `step` is then the step of the main one that comes next.
        """
        count = self._count(code)
        if not _is_reported(count):
            return
        evidence: dict[str, Any] = {
            "loss": _as_json(metrics.loss),
            "norm": _as_json(metrics.gradient_norm),
            "lr": _as_json(metrics.lr),
            "loss_before": [_as_json(loss) for loss, _ in past],
            "norm_before": [_as_json(norm) for _, norm in past],
        }
        if optimizer:
            evidence["optimizer"] = optimizer
        if count > 1:
            evidence["so_far"] = count
        if self._in_half():
            evidence["half"] = True
        self._add_context(evidence, step, metrics, save=count <= _REPORT_FIRST, at_once=at_once)
        self._write("finding", code=code, severity="critical", step=step, evidence=evidence)
        if _is_bad_input(evidence) and self._count("non-finite-input") == 1:
            self._write("finding", code="non-finite-input", severity="critical", step=step, evidence={"input": evidence["input"]})
        if was_skipped:
            self._write("action", action="skip-batch", step=step, because=code, settings={}, state="done")

    def ended(self, step: int, error: BaseException | None) -> None:
        """Report a batch that is not finite in the last, unfinished step, or weights with which no step can be made: the error
        that ended it may be about anything.
        """
        evidence: dict[str, Any] = {}
        with contextlib.suppress(Exception):  # a device that failed cannot be read
            evidence = self.batch_evidence(step, save=False)
        if _is_bad_input(evidence) and self._count("non-finite-input") == 1:
            if error is not None:
                evidence["error"] = f"{type(error).__name__}: {error}"
            self._write("finding", code="non-finite-input", severity="critical", step=step, evidence=evidence)
        weights: dict[str, Any] = {}
        with contextlib.suppress(Exception):
            weights = weight_evidence(self._models()) if error is not None else {}
        if weights.get("damaged"):
            self._write("finding", code="non-finite-weights", severity="critical", step=step, evidence={"onset": step, **weights})

    def clipped(self, step: int, metrics: StepMetrics, *, norm: float, limit: float) -> None:
        """Report an update that was clipped."""
        if _is_reported(self._count("clip")):
            evidence = {"norm": norm, "limit": limit, "loss": _as_json(metrics.loss), "lr": _as_json(metrics.lr)}
            self._write("finding", code="gradient-explosion", severity="warning", step=step, evidence=evidence)
            settings = {"max_norm": limit, "steps": 1}
            self._write("action", action="clip", step=step, because="gradient-explosion", settings=settings, state="done")

    def cannot(self, what: str, why: str) -> None:
        """Report once that Holdfast cannot do something in this loop, with the line to add where there is one."""
        if self._count(f"cannot {what}: {why}") == 1:
            evidence = {"what": what, "error": why, "limit": True}
            self._write("finding", code="holdfast-degraded", severity="info", evidence=evidence)

    def _add_context(self, evidence: dict[str, Any], step: int, metrics: StepMetrics, *, save: bool, at_once: bool) -> None:
        of_first_layer: str | None = None
        with contextlib.suppress(Exception):  # the finding is written without what cannot be determined
            order = [name for model in self._models() for name, _ in model.named_parameters()]  # as the models register them
            bad = self._bad_parameters(metrics)
            if bad:
                evidence.update({"parameter": bad[0], "bad_parameters": len(bad)})
                evidence.update(first_bad(order, set(bad), loss_finite=not metrics.has_bad_loss))
                of_first_layer = None if metrics.has_bad_loss else input_evidence(order, bad)
            evidence.update(self.batch_evidence(step, save=save))
            evidence.update(weight_evidence(self._models()) if at_once else {})
        if metrics.evidence is not None:
            shown = {"input": evidence["input"]} if _is_bad_input(evidence) else {}
            evidence.update({**metrics.evidence, **shown})
        elif at_once and not _is_bad_input(evidence):
            with contextlib.suppress(Exception):
                variables = variable_evidence(self._models())
                if metrics.loss is not None and not metrics.has_bad_loss and variables.get("input") != "finite":
                    variables.pop("input", None)  # the loss is finite, so its inputs were: the bad variable came later
                if metrics.backwards > 1 and variables.get("input") == "finite":
                    variables.pop("input")  # of the last of several batches
                evidence.update(variables)
        if of_first_layer is not None and evidence.get("input", "unknown") == "unknown":
            evidence["input"] = of_first_layer

    def _bad_parameters(self, metrics: StepMetrics) -> list[str]:
        each = metrics.stats.each if metrics.stats is not None else None
        return [] if each is None else [self._name_of(int(code)) for code in each.names[np.asarray(each.non_finite) != 0]]

    def batch_evidence(self, step: int, *, save: bool) -> dict[str, Any]:
        """Which batch it was; with `save` it is also written to disk for a replay."""
        batches = next((batches for number, batches in self._in_flight if number == step), None)
        if batches is None:
            batches = self._batches.current()
        if not batches:
            return {"input": "unknown"}
        saved = self._save(step, batches) if save else describe(step, batches)
        return {"input": saved.input, "batch": _summary(saved)}

    def _save(self, step: int, batches: list[DrawnBatch]) -> SavedBatches:
        self._num_saved += 1
        if self._num_saved > _MAX_SAVED:
            saved = describe(step, batches)
            saved.not_saved.append(f"{_MAX_SAVED} batches of this run are saved already")
            return saved
        folder = self._recorder.recording.path / "batches"
        state = {str(number): model.state_dict() for number, model in enumerate(self._models())}
        return save_batches(folder, step, batches, state=state, run_later=self._recorder.run_later)

    def _count(self, what: str) -> int:
        self._counts[what] = self._counts.get(what, 0) + 1
        return self._counts[what]

    def _write(self, kind: str, **fields: Any) -> None:
        with contextlib.suppress(OSError):
            recording = self._recorder.recording
            self._recorder.run.journal.write(kind, rank=recording.rank, **recording.place, **fields)


def _summary(saved: SavedBatches) -> dict[str, Any]:
    indices = [None if batch is None else batch[:_MAX_INDICES] for batch in saved.dataset_indices]
    summary = {
        "indices": indices[0] if len(indices) == 1 else indices,
        "dataset": saved.dataset,
        "bad_samples": saved.bad_samples[:_MAX_INDICES],
        "file": None if saved.file is None else Path(saved.file).name,
        "not_saved": saved.not_saved,
    }
    return {key: value for key, value in summary.items() if value}


def _is_reported(count: int) -> bool:
    return count <= _REPORT_FIRST or count & (count - 1) == 0


def _is_bad_input(evidence: dict[str, Any]) -> bool:
    return evidence.get("input", "unknown") not in ("finite", "unknown")


def _as_json(value: float | None) -> float | str | None:
    """A float as JSON allows it: `nan` and `inf` as text."""
    return value if value is None or math.isfinite(value) else str(value)
