"""The line at the end of a run whose command succeeded: what was wrong with its training. None if nothing was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.signals.run_folder import RunFolder
from holdfast.signals.trouble import NOTHING_SEEN
from holdfast.units import count

_CLAUSES = {  # as the second half of a sentence, where the short name is none
    "non-finite-loss": "the loss is NaN or Inf",
    "non-finite-gradient": "gradients are NaN or Inf",
    "non-finite-weights": "the weights are NaN or Inf",
    "non-finite-input": "the input holds NaN or Inf",
    "loss-spike": "the loss jumped",
    "dead-units": "there are dead units",
    "saturated-units": "there are saturated units",
    "overfitting": "the model overfits",
    "underfitting": "the model underfits",
    "split-leak": "two splits share samples",
    "too-good": "the results are too good to be true",
    "token-out-of-range": "a token or label was out of range",
    "slow-loading": "data loading is slow",
    "low-gpu-utilisation": "GPU utilisation is low",
    "recompilation": "torch.compile keeps recompiling",
    "gpu-out-of-memory": "GPU memory ran out",
    "host-out-of-memory": "host memory ran out",
    "computing-on-cpu": "the training runs on the CPU although a GPU is present",
}
_ONCE = {  # what happens at a step, and does not last from there on
    *("loss-spike", "non-finite-input", "token-out-of-range", "gpu-out-of-memory", "host-out-of-memory", "replica-left"),
    *("metric-collapse", "scaler-collapse", "checkpoint-torn", "checkpoint-non-finite", "checkpoint-not-saved"),
}
_VALUES = {"nan": "NaN", "inf": "Inf", "-inf": "-Inf"}
_OWN = "holdfast-degraded"
_ABOVE_INFO = ("critical", "warning")
_ROWS = 1 << 16


class RunVerdict(NamedTuple):
    """A sentence for the terminal and for notifications, and whether everything in it was repaired."""

    text: str
    repaired: bool


def verdict_on(run: RunFolder) -> RunVerdict | None:
    """What was wrong, from the journal, with the command that shows more."""
    rows = [row for row in run.journal if row.get("kind") in ("finding", "action")]
    findings = [
        row for row in rows if row["kind"] == "finding" and row.get("severity") in _ABOVE_INFO and _concerns_training(row)
    ]
    if not findings:
        return None
    open_ones = [row for row in findings if not _is_answered(row, rows)]
    first = min(open_ones or findings, key=lambda row: (row.get("severity") != "critical", _onset(row)))
    others = len({row.get("code") for row in open_ones or findings}) - 1
    more = (f", and {others} more" if others else "") + _resumed_from(rows)
    where = f"step {_onset(first):,}{_epoch_words(run, _onset(first))}"
    if first.get("code") == _OWN:
        why = str(first["evidence"].get("error")).partition(": ")[2]
        return RunVerdict(f"finished, but no step was recorded: {why}{more}: holdfast diagnose {run.target}", False)
    if open_ones:
        since = "at" if first.get("code") in _ONCE else "from"
        return RunVerdict(f"finished, but {_clause(first)} {since} {where}{more}: holdfast diagnose {run.target}", False)
    return RunVerdict(f"finished; repaired: {_name(first)} at {where}{more}: holdfast diagnose {run.target}", True)


def _resumed_from(rows: list[dict[str, Any]]) -> str:
    """From which checkpoint the script was resumed by its own flag, and how many steps were lost by all such restarts."""
    restarts = [row for row in rows if row.get("action") == "restart"]
    pairs = zip(restarts, (*restarts[1:], {}), strict=False)
    resumed = [row for row, following in pairs if row.get("resumed_with") and not following.get("flag_failed")]
    if not resumed:
        return ""
    lost = [int(row["done_again"]) for row in resumed if row.get("done_again") is not None]
    again = f" ({count(sum(lost), 'step')} repeated)" if len(lost) == len(resumed) else ""
    return f", resumed from {Path(str(resumed[-1].get('checkpoint'))).name}{again}"


def _concerns_training(finding: Mapping[str, Any]) -> bool:
    """Failures of Holdfast itself stay in the journal; the verdict only reports that nothing was watched at all."""
    return finding.get("code") != _OWN or (finding.get("evidence") or {}).get("what") == NOTHING_SEEN


def _is_answered(finding: Mapping[str, Any], rows: list[dict[str, Any]]) -> bool:
    """Whether something was done about it, or about another finding of the same step."""
    done = (row for row in rows if row["kind"] == "action" and row.get("state", "done") == "done")
    return any(row.get("because") == finding.get("code") or row.get("step") == finding.get("step") for row in done)


def _onset(finding: Mapping[str, Any]) -> int:
    onset = (finding.get("evidence") or {}).get("onset", finding.get("step"))
    return int(onset) if isinstance(onset, (int, float)) else 0


def _clause(finding: Mapping[str, Any]) -> str:
    code = str(finding.get("code"))
    value = _VALUES.get(str((finding.get("evidence") or {}).get("loss")))
    if code == "non-finite-loss" and value:
        return f"the loss is {value}"
    return _CLAUSES.get(code) or _name(finding)


def _name(finding: Mapping[str, Any]) -> str:
    from holdfast.probe.words import FINDINGS

    code = str(finding.get("code"))
    return FINDINGS.get(code, code)


def _epoch_words(run: RunFolder, step: int) -> str:
    from holdfast.probe.rows import last_rows

    for recording in run.recordings()[:1]:
        rows = last_rows(recording.path, "steps", ("step", "epoch"), _ROWS)
        here = rows["epoch"][rows["step"] == step]
        if len(here) and int(here[-1]) >= 0:
            return f" (epoch {int(here[-1])})"
    return ""
