"""The course of one training, followed row by row: each finding once, whether rows come one at a time or all together."""

from __future__ import annotations

import copy
import itertools
import json
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.detectors.finding import Finding
from holdfast.detectors.loss_divergence import jumped_rate, jumps
from holdfast.detectors.metric_plateau import metric_plateau
from holdfast.detectors.order import EVERY, OF_EVALUATIONS, OF_STEPS
from holdfast.probe.follow import Follower
from holdfast.probe.rows import Column, last_rows
from holdfast.recovery.window import COLUMNS, Window
from holdfast.signals.run_folder import Recording
from holdfast.signals.view import Evaluation

_QUIET_ROWS = 128  # a finding that was not seen for so many rows has ended, and is told again when it comes back


class Seen(NamedTuple):
    """What detectors found at one point: everything that holds, and what of it is new."""

    holds: tuple[Finding, ...]
    new: tuple[Finding, ...]


@dataclass(slots=True)
class _Reported:
    finding: Finding
    row: int
    quiet: int


class Course:
    """One training of a run over all its ranks. The lowest rank represents all: their updates are the same."""

    def __init__(self, recording: Recording, earlier: Course | None = None) -> None:
        """`earlier` is the newest training before it: where a restarted script resumes it, its rows are the past of this one."""
        self.recordings, self.taken = [recording], {recording}
        self._steps = Follower(recording.path, "steps", COLUMNS)
        self._evaluations = Follower(recording.path, "evaluations", ("step", "split", "name", "value"))
        self._window = Window(plays=bool(recording.info().get("environment")))
        self._reported, self._ignored_until = dict[str, _Reported](), -1
        self._rest: dict[str, Column] = {}
        self._earlier, self._resumed_at = earlier, -1

    def add(self, recording: Recording) -> None:
        """Another rank of the same training."""
        self.recordings.append(recording)
        self.taken.add(recording)

    def read(self, before: Sequence[Evaluation] = ()) -> Iterator[Seen]:
        """What is found in the rows that have come since the last call; stop early, and the next call resumes from there.

        `before` are the evaluations of the run that this one resumes: where it counts on from their steps, they are its past.
        """
        while len((rows := self._pending())["step"]):
            self._resume(int(rows["step"][0]))
            room = EVERY - self._window.seen % EVERY
            self._rest = {name: values[room:] for name, values in rows.items()}
            self._window.append({name: values[:room] for name, values in rows.items()})
            if self._window.seen % EVERY == 0 and (seen := self._look_at_steps()).holds:
                yield seen
        if before and not self._window.is_evaluated and before[-1].step <= self._window.first_step:
            for row in before:
                self._window.evaluate(row)
        yield from self._read_evaluations()

    def _resume(self, step: int) -> None:
        """Take over what an earlier process did before the step that this one resumes from."""
        earlier, self._earlier = self._earlier, None
        while earlier is not None and earlier.first_step < 0:  # it failed before its first step
            earlier = earlier._earlier
        if earlier is None or not 0 <= earlier.first_step < step <= earlier.step + 1:
            return
        if earlier.recordings[0].info().get("pid") != self.recordings[0].info().get("pid"):
            self._window, self._resumed_at = copy.deepcopy(earlier._window), step
            self._window.forget(step, earlier.step)

    def recent(self, steps: int = 256) -> tuple[Finding, ...]:
        """Findings of weight that were reported within the last steps, whether they still hold or not."""
        since = self._window.view().step - steps
        findings = (reported.finding for reported in self._reported.values())
        return tuple(finding for finding in findings if finding.severity != "info" and finding.step >= since)

    def undone(self, since: int, until: int) -> None:
        """A roll-back took the training back to step `since` at step `until`: what lay between never happened."""
        self._window.forget(since, until)
        self._reported.clear()
        self._ignored_until = until

    @property
    def step(self) -> int:
        """The newest step that was judged."""
        return self._window.view().step

    @property
    def rolled_back_at(self) -> int:
        """The last step before the newest roll-back; -1 where there was none."""
        return self._ignored_until

    @property
    def first_step(self) -> int:
        """The first step that was judged; -1 before."""
        return self._window.first_step

    @property
    def part(self) -> int:
        """Which training of the run it is."""
        return self.recordings[0].part

    def newest_step(self) -> int:
        """The newest step of any rank, judged or not."""
        newest = (last_rows(recording.path, "steps", ("step",), 1)["step"] for recording in self.recordings)
        return max((int(steps[-1]) for steps in newest if len(steps)), default=-1)

    def is_here(self) -> bool:
        """Whether all ranks run on this machine."""
        return {recording.info().get("host") for recording in self.recordings} == {socket.gethostname()}

    def step_seconds(self) -> float:
        """How long a step usually takes; 0 if that is not known."""
        _, seconds = self._window.view().last("step_seconds", 50)
        return float(sorted(seconds)[len(seconds) // 2]) if len(seconds) else 0.0

    def norms_around(self, step: int, count: int) -> tuple[Column, Column]:
        """The gradient norms of some steps before one, and of those from it on."""
        steps, norms = self._window.view().last("grad_norm", 4 * count)
        before, after = norms[steps < step], norms[steps >= step]
        return before[-count:], after[-count:]

    def jumped_rate(self, step: int, rate: object) -> dict[str, float | int]:
        """The learning rates, if they jumped shortly before a step whose `rate` is known; its rows may still be on their way."""
        view = self._window.view()
        _, rates = view.last("lr", 1)
        if (
            view.step < step
            and len(rates)
            and isinstance(rate, float)
            and jumps(float(rates[-1]), rate, view.highest("lr", before=step))
        ):
            return {"lr": rate, "lr_before": float(rates[-1]), "lr_jumped_at": view.step + 1}
        return jumped_rate(view, step)

    def snapshots(self) -> tuple[int, ...]:
        """The steps of which every rank holds a snapshot, oldest first."""
        held = [_snapshots(recording) for recording in self.recordings]
        return tuple(sorted(set.intersection(*held)))

    def _pending(self) -> dict[str, Column]:
        rows = self._rest
        if not rows or not len(rows["step"]):
            rows = self._steps.new_rows()
        if self._ignored_until >= 0 and len(rows["step"]):
            wanted = rows["step"] > self._ignored_until
            while not wanted.any() and len(rows["step"]):
                rows = self._steps.new_rows()
                wanted = rows["step"] > self._ignored_until
            rows = {name: values[wanted] for name, values in rows.items()}
        return rows

    def _look_at_steps(self) -> Seen:
        view, seen = self._window.view(), self._window.seen
        holds = [
            (finding, step_detector.every)
            for step_detector in OF_STEPS
            if seen % step_detector.every == 0 and (finding := step_detector.detector(view))
        ]
        new = [
            finding
            for finding, every in holds
            if not self._explained(finding) and self._is_new(finding, max(_QUIET_ROWS, 2 * every))
        ]
        return Seen(tuple(finding for finding, _ in holds), tuple(new))

    def _explained(self, finding: Finding) -> bool:
        """A spike that turned out to be the first step of a divergence."""
        larger = self._reported.get("loss-divergence")
        return finding.code == "loss-spike" and larger is not None and finding.step >= larger.finding.onset - 2

    def _is_new(self, finding: Finding, quiet: int) -> bool:
        before = self._reported.get(finding.code)
        if before is not None and self._window.seen - before.row <= before.quiet:
            before.row = self._window.seen
            return False
        self._reported[finding.code] = _Reported(finding, self._window.seen, quiet)
        return True

    def _read_evaluations(self) -> Iterator[Seen]:
        rows = self._evaluations.new_rows()
        values = zip(rows["step"], rows["split"], rows["name"], rows["value"], strict=True)
        for step, together in itertools.groupby(values, key=lambda row: int(row[0])):  # one metric is judged by the others
            if step <= max(self._ignored_until, self._resumed_at):  # while it was fast-forwarded, it was one state all the time
                continue
            for _, split, name, value in together:
                self._window.evaluate(Evaluation(step, str(split), str(name), float(value)))
            view = self._window.view().until(step)
            holds = [finding for detector in OF_EVALUATIONS if (finding := detector(view))]
            codes = {finding.code for finding in holds}
            new = [finding for finding in holds if finding.code not in self._reported]
            for code in ("metric-collapse", "metric-decline"):
                if code not in codes:
                    self._reported.pop(code, None)
            self._reported |= {finding.code: _Reported(finding, self._window.seen, 0) for finding in new}
            plateau = metric_plateau(view, at_least=0)
            if holds or plateau:
                yield Seen((*holds, *([plateau] if plateau else [])), tuple(new))


def _snapshots(recording: Recording) -> set[int]:
    try:
        content = json.loads((recording.path / "snapshots.json").read_text(encoding="utf-8"))
        return {int(step) for step in content["steps"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
