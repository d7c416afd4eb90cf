"""All symptoms of `detectors/runs`, checked at fixed rows of a run: each is reported once, or again when it gets worse.

At which rows is fixed by the run, not by how many of them come at a time: live and afterwards give the same findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from holdfast.detectors.finding import Finding
from holdfast.detectors.runs.constant_input import constant_batches, constant_input
from holdfast.detectors.runs.dead_units import dead_units, overwritten_layer
from holdfast.detectors.runs.gradient_vanishing import gradient_vanishing
from holdfast.detectors.runs.guessing import guessing
from holdfast.detectors.runs.memory_growth import gpu_memory_growth, host_memory_growth
from holdfast.detectors.runs.oversized_weights import oversized_weights
from holdfast.detectors.runs.preprocessing import preprocessing_mismatch
from holdfast.detectors.runs.rate_dropped import rate_dropped
from holdfast.detectors.runs.schedule_ended import schedule_ended
from holdfast.detectors.runs.slow_loading import slow_loading
from holdfast.detectors.runs.slow_step import slow_step
from holdfast.detectors.runs.split_leak import split_leak
from holdfast.detectors.runs.tiny_updates import tiny_updates
from holdfast.detectors.runs.unshuffled import unshuffled_data
from holdfast.detectors.runs.untrained import parameters_not_trained
from holdfast.signals.run_view import RunView
from holdfast.signals.view import Column

RunDetector = Callable[[RunView], "Finding | None"]
OF_RUNS: tuple[RunDetector, ...] = (
    parameters_not_trained,
    oversized_weights,
    dead_units,
    overwritten_layer,
    gradient_vanishing,
    constant_input,
    constant_batches,
    preprocessing_mismatch,
    split_leak,
    tiny_updates,
    guessing,
    rate_dropped,
    schedule_ended,
    unshuffled_data,
    host_memory_growth,
    gpu_memory_growth,
    slow_loading,
    slow_step,
)
EARLY, EVERY = 64, 256  # rows: a short run is looked at early, a long one not too often
_SEVERITIES = ("info", "warning", "critical")


class RunWatch:
    """Takes in the rows of one training and gives what is new."""

    def __init__(self) -> None:
        self.view = RunView()
        self._reported: dict[str, str] = {}

    def room(self) -> int:
        """How many rows may be added before it must be asked."""
        every = EARLY if self.view.seen < EVERY else EVERY
        return every - self.view.seen % every

    def add(self, rows: Mapping[str, Column]) -> bool:
        """Take in rows of `steps`, at most as many as there is room for; whether it is time to ask."""
        self.view.add_steps(rows)
        return self.room() == (EARLY if self.view.seen < EVERY else EVERY)

    def ask(self) -> Iterator[Finding]:
        """What is found now and was not reported yet."""
        for detector in OF_RUNS:
            finding = detector(self.view)
            earlier = self._reported.get(_name(finding)) if finding is not None else None
            if finding is None or (earlier is not None and _SEVERITIES.index(earlier) >= _SEVERITIES.index(finding.severity)):
                continue
            self._reported[_name(finding)] = finding.severity
            yield finding


def _name(finding: Finding) -> str:
    """What it is reported once as; that one worker is the cause may be seen later than that there is waiting."""
    return f"{finding.code} of one worker" if "slow_worker" in finding.evidence else finding.code
