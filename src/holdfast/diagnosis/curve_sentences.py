"""One sentence for each finding in curves, with its numbers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.detectors.finding import Finding
from holdfast.diagnosis.run_sentences import SENTENCES as OF_RUNS
from holdfast.diagnosis.run_sentences import ended
from holdfast.signals.curves import Curves

Evidence = Mapping[str, Any]
Place = Callable[[int], str]  # a step in words


def sentence(finding: Finding, curves: Curves) -> str:
    """The finding in words; for a code without words of its own, its evidence."""
    finding = finding.with_numbers()
    if "ended" in finding.evidence:  # how a command died, whatever it is called
        return ended(finding)
    words = _worded(finding, _Place(curves, finding))
    if words is not None:
        return words
    return _of_reflex(finding) if "parameter" in finding.evidence else _of_evidence(finding)


def sentence_of(code: str, step: int | None, evidence: Evidence) -> str | None:
    """The sentence of a finding in a journal; None if there is none, or its evidence is missing."""
    return _worded(Finding(code, step=step or 0, evidence=evidence).with_numbers(), lambda step: f"step {step:,}")


def _worded(finding: Finding, at: Place) -> str | None:
    """By the sentence for curves, else the one for runs; the evidence of another detector may fit neither."""
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
        if (of_curve := _SENTENCES.get(finding.code)) is not None:
            return of_curve(finding, at)
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
        if (of_run := OF_RUNS.get(finding.code)) is not None:
            return of_run(finding)
    return None


def _of_reflex(finding: Finding) -> str:
    """What the guard wrote down at a bad update."""
    evidence = finding.evidence
    batch = evidence.get("batch") if isinstance(evidence.get("batch"), Mapping) else {}
    samples = list(batch.get("bad_samples") or ())[:5] if batch else []
    first = (
        f": the first NaN or Inf came from `{evidence['operation']}`"
        if "operation" in evidence
        else f", first in {evidence['parameter']}"
    )
    parts = [
        f"at step {finding.step:,}{first}",
        f"input {evidence['input']}" if evidence.get("input", "unknown") != "unknown" else "",
    ]
    parts += [f"bad samples of the data set: {', '.join(map(str, samples))}" if samples else ""]
    if batch and batch.get("file") and "operation" not in evidence and not samples:  # on a GPU the graph is gone by then
        parts.append("`holdfast replay` runs that step again and names the operation")
    return "; ".join(filter(None, parts))


def _of_evidence(finding: Finding) -> str:
    plain = {name: value for name, value in finding.evidence.items() if isinstance(value, (int, float, str)) and value != ""}
    text = ", ".join(f"{name.replace('_', ' ')} {short(value)}" for name, value in plain.items() if name != "onset")
    return f"at step {finding.onset:,}: {text}" if text else f"at step {finding.onset:,}"


def short(value: Any) -> str:
    """A number in about four digits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) or not math.isfinite(value):
        return str(value)
    return f"{value:.3g}"


class _Place:
    """Says where in a run something is: by its epoch if that is known, else by its step."""

    def __init__(self, curves: Curves, finding: Finding) -> None:
        self._curve = next((curve for curve in curves.curves if curve.name == finding.series), None)

    def __call__(self, step: int) -> str:
        curve = self._curve
        if curve is not None and curve.epochs is not None:
            for index in (curve.steps == step).nonzero()[0]:
                epoch = curve.epoch_at(int(index))
                if epoch is not None:
                    return f"epoch {epoch:g}"
        return f"step {step:,}"


def _non_finite(finding: Finding, at: Place) -> str:
    evidence = finding.evidence
    tail = "recovered later" if evidence["recovered"] else "did not recover"
    points = f"{evidence['count']} of {evidence['of']} points"
    return f"{finding.series} became NaN or Inf at {at(evidence['onset'])} ({points}), and {tail}"


def _divergence(finding: Finding, at: Place) -> str:
    evidence = finding.evidence
    live = "best" not in evidence  # seen while it trained
    before, after = (short(evidence[name]) for name in (("normal", "loss") if live else ("best", "end")))
    return f"{finding.series or 'loss'} rose at {at(evidence['onset'])} and stayed high: {before} → {after}"


def _collapse(finding: Finding, at: Place) -> str:
    evidence = finding.evidence
    best, now = short(evidence["best"]), short(evidence["now"])
    return f"{finding.series} fell from {best} ({at(evidence['best_step'])}) to {now}, starting at {at(evidence['onset'])}"


def _overfitting(finding: Finding, at: Place) -> str:
    evidence = finding.evidence
    best, now = short(evidence["best"]), short(evidence["now"])
    trained = f"the training loss went from {short(evidence['train_then'])} to {short(evidence['train_now'])}"
    return f"{finding.series} was best at {at(evidence['best_step'])} ({best}) and is {now} now, while {trained}"


def _not_learning(finding: Finding, at: Place) -> str:  # noqa: ARG001 - all are called alike
    evidence = finding.evidence
    if "start" not in evidence:
        return f"{finding.series} never got above {short(evidence['best'])}"
    if "entropy" in evidence:
        level = f"the loss of predicting only the class frequencies ({short(evidence['entropy'])})"
        return f"{finding.series or 'loss'} stays at {short(evidence['end'])}, {level}"
    chance = f", the loss of guessing among {evidence['classes']} classes" if evidence.get("classes") else ""
    return f"{finding.series or 'loss'} ends where it started: {short(evidence['start'])} → {short(evidence['end'])}{chance}"


def _oscillation(finding: Finding, at: Place) -> str:  # noqa: ARG001 - all are called alike
    evidence = finding.evidence
    share = 100 * evidence["median_move"] / max(evidence["level"], 1e-12)
    return f"{finding.series} changes by {share:.0f} % between evaluations without improving"


def _spike(finding: Finding, at: Place) -> str:
    evidence = finding.evidence
    came = "recovered" if evidence["recovered"] else "did not recover"
    name, usual, top = finding.series or "loss", short(evidence["normal"]), short(evidence["loss"])
    return f"{name} jumped from {usual} to {top} at {at(evidence['onset'])}, and {came}"


_SENTENCES: dict[str, Callable[[Finding, Place], str]] = {
    "non-finite-loss": _non_finite,
    "non-finite-gradient": _non_finite,
    "loss-divergence": _divergence,
    "metric-collapse": _collapse,
    "metric-decline": _collapse,
    "overfitting": _overfitting,
    "not-learning": _not_learning,
    "underfitting": _not_learning,
    "loss-oscillation": _oscillation,
    "loss-spike": _spike,
}
