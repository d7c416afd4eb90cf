"""Watch the first steps after a resume against the run before: `healthy`, `warning` or `explosion`.

It lasts ten epochs or 500 steps, whichever is shorter, but 50 steps at least. The verdict is a row of the journal when the watch
begins (`watching`), whenever it gets worse, and when it is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from holdfast.detectors.finding import Finding, plain
from holdfast.detectors.resume.fit import loss_fit
from holdfast.detectors.resume.mismatch import VERDICTS, resume_mismatch
from holdfast.detectors.resume.runs import Restored, Resumed, RunBefore
from holdfast.probe.follow import Follower
from holdfast.probe.rows import Column
from holdfast.recovery.resume_reading import COLUMNS, EVALUATION, evaluations_before, measured_column, resumed, run_before
from holdfast.signals.lineage import save_in
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.view import Evaluation, Floats, measured

STEPS, EPOCHS, AT_LEAST = 500, 10, 50
_EVERY = 10  # steps between two looks
_TOO_FEW = 20  # steps: nothing can be said of a run that ended before
_SEVERITIES = ("info", "warning", "critical")


class ResumeWatch:
    """One resumed training, from its first step on."""

    def __init__(self, run: RunFolder, row: Mapping[str, Any]) -> None:
        self._run, self._row = run, row
        recording = run.path / str(row.get("recording") or "rank-0")
        self._steps = Follower(recording, "steps", COLUMNS)
        self._evaluations = Follower(recording, "evaluations", EVALUATION)
        self._rows, self._evaluated = self._steps.new_rows(0), self._evaluations.new_rows(0)
        self._restored, self._reported = Restored.from_row(row), -1
        self._looked, self.over, self._verdict = 0, False, "healthy"
        self.evaluations: list[Evaluation] = []  # of the run before, until the save
        self._before, self._against = self._read_before()
        self._write("watching", step=int(row.get("step") or 0), against=self._against, steps=STEPS, epochs=EPOCHS)

    def look(self, *, last: bool = False) -> Iterable[Finding]:
        """What is new; `last`: the run has ended."""
        if self.over:
            return
        self._read()
        there = min(len(self._rows["step"]), self._limit())
        while self._looked + _EVERY <= there:  # whether rows come one at a time or all together
            self._looked += _EVERY
            yield from self._judge(self._looked)
        if last or there == self._limit():
            if there > self._looked:
                yield from self._judge(there)
            self._end(there)

    def _judge(self, steps: int) -> Iterable[Finding]:
        rows = {name: values[:steps] for name, values in self._rows.items()}
        finding = resume_mismatch(self._before, resumed(rows, self._evaluated_until(rows)), self._restored)
        weight = _SEVERITIES.index(finding.severity) if finding is not None else -1
        if finding is None or weight <= self._reported:
            return
        self._reported = weight
        verdict = str(finding.evidence["verdict"])
        evidence = {name: value for name, value in finding.evidence.items() if name != "verdict"}
        step = int(rows["step"][-1])
        yield Finding(finding.code, step=step, severity=finding.severity, evidence=evidence)
        if VERDICTS.index(verdict) > VERDICTS.index(self._verdict):
            self._verdict = verdict
            self._write(verdict, step=step, after=steps, against=self._against)

    def _evaluated_until(self, rows: Mapping[str, Column]) -> dict[str, Column]:
        early = self._evaluated["step"] <= rows["step"][-1] if len(rows["step"]) else slice(0, 0)
        return {name: values[early] for name, values in self._evaluated.items()}

    def _read(self) -> None:
        room = STEPS + AT_LEAST - len(self._rows["step"])
        new = self._steps.new_rows(room) if room > 0 else None
        if new is not None and len(new["step"]):
            self._rows = _joined(self._rows, new)
        evaluated = self._evaluations.new_rows(256)
        if len(evaluated["step"]):
            self._evaluated = _joined(self._evaluated, evaluated)

    def _limit(self) -> int:
        """After how many steps it is over, as far as the epochs tell by now."""
        epochs = self._rows["epoch"]
        if not len(epochs) or not measured(epochs).all():
            return STEPS
        in_time = int(np.sum(epochs < epochs[0] + EPOCHS))
        return min(STEPS, max(AT_LEAST, in_time)) if in_time < len(epochs) else STEPS

    def _end(self, steps: int) -> None:
        self.over = True
        rows = {name: values[:steps] for name, values in self._rows.items()}
        how = self._course_of_loss(measured_column(rows, "loss")) if self._verdict != "healthy" else {}
        verdict = "unknown" if steps < _TOO_FEW and self._verdict == "healthy" else self._verdict
        step = int(self._rows["step"][steps - 1]) if steps else 0
        self._write(verdict, step=step, after=steps, against=self._against, over=True, **how)

    def _course_of_loss(self, loss: Floats) -> dict[str, Any]:
        """How far up the loss went, and whether the newest losses are where they were."""
        whole, newest = (loss_fit(self._before, Resumed(loss=part)) for part in (loss, loss[-30:]))
        back = newest is not None and not newest.is_off and bool(np.isfinite(loss[-30:]).all())
        return {"loss": plain(whole.level if whole is not None and whole.is_off else None), "came_back": back}

    def _read_before(self) -> tuple[RunBefore, dict[str, Any] | None]:
        save = save_in(self._row)
        earlier = run_before(save) if save is not None else None
        if save is None or earlier is None:
            return RunBefore(), None
        before, step = earlier
        self.evaluations = evaluations_before(save, step)
        losses = before.loss[-50:][np.isfinite(before.loss[-50:])]
        level = float(f"{np.median(losses):.6g}") if len(losses) else None
        return before, {"run": save.run.name, "step": step, "loss": level}

    def _write(self, verdict: str, **facts: Any) -> None:
        place = {name: self._row[name] for name in ("rank", "recording", "path", "at") if self._row.get(name) is not None}
        self._run.journal.write("checkpoint", event="resume-watch", verdict=verdict, **place, **facts)


class ResumeWatches:
    """The watches of a run: one for each training that was resumed, on its lowest rank."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._watches: dict[str, ResumeWatch] = {}
        self._seen = 0

    def look(self, rows: list[dict[str, Any]], *, last: bool = False) -> Iterable[Finding]:
        """What is new; `rows` are all of the journal's so far."""
        for row in rows[self._seen :]:
            if row.get("kind") == "checkpoint" and row.get("event") == "resumed":
                part = str(row.get("recording") or "rank-0").partition(".")[2]
                if part not in self._watches and row.get("rank") == min(
                    (recording.rank for recording in self._run.recordings()), default=0
                ):
                    self._watches[part] = ResumeWatch(self._run, row)
        self._seen = len(rows)
        for watch in self._watches.values():
            yield from watch.look(last=last)

    def evaluations_before(self, part: int) -> list[Evaluation]:
        """What the run was evaluated to before it was resumed; empty where it was not."""
        watch = self._watches.get("" if part == 0 else str(part))
        return watch.evaluations if watch is not None else []


def _joined(old: Mapping[str, Column], new: Mapping[str, Column]) -> dict[str, Column]:
    return {name: np.concatenate([old[name], new[name]]) for name in new}
