"""Follow one training of a run through its tables and say what `detectors/runs` find: live, or all of it afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.detectors.runs.watch import RunWatch
from holdfast.diagnosis.ranks_follower import MachineFollower, RanksFollower, SetupFollower, trained_together
from holdfast.probe.follow import Follower
from holdfast.signals.run_folder import Recording, RunFolder
from holdfast.signals.run_view import INPUT_COLUMNS, PARAMETER_COLUMNS, STEP_COLUMNS, UNTRAINED_COLUMNS, InputSample
from holdfast.signals.view import Column

_BESIDE = {
    "parameters": PARAMETER_COLUMNS,
    "untrained": UNTRAINED_COLUMNS,
    "loader": ("step", "worker", "wait_seconds", "queue", "persistent", "pinned"),
    "evaluations": ("step",),
    "inputs": INPUT_COLUMNS,
}
_AFTER_THE_LAST = 1 << 62  # step


class RunFollower:
    """Reads on from where it was; the cost of a look depends on the new rows only."""

    def __init__(self, recording: Recording) -> None:
        self._watch = RunWatch()
        self._watch.view.cores = recording.info().get("cores")
        self._steps = Follower(recording.path, "steps", STEP_COLUMNS)
        self._beside = {name: _Beside(Follower(recording.path, name, columns)) for name, columns in _BESIDE.items()}

    def read(self) -> Iterator[Finding]:
        """What is found in the rows since the last call."""
        while len((rows := self._steps.new_rows())["step"]):
            while len(rows["step"]):
                room = self._watch.room()
                part, rows = ({name: values[cut] for name, values in rows.items()} for cut in (slice(room), slice(room, None)))
                if self._watch.add(part):
                    yield from self._ask()

    def end(self) -> Iterator[Finding]:
        """The run is over: look once more, at all of it."""
        yield from self.read()
        self._watch.view.ended = True
        yield from self._ask()

    def _ask(self) -> Iterator[Finding]:
        view = self._watch.view
        until = _AFTER_THE_LAST if view.ended else view.step  # an evaluation at the end comes after the last step
        for row in self._beside["parameters"].before(until):
            if row["name"] is not None:
                view.add_parameter(*(row[name] for name in PARAMETER_COLUMNS))
        for row in self._beside["untrained"].before(until):
            view.add_untrained(*(row[name] for name in UNTRAINED_COLUMNS))
        for row in self._beside["loader"].before(until):
            view.workers = max(view.workers, row["worker"] + 1)
            if row["worker"] == 0 and row["queue"] >= 0:
                view.ready.append((row["step"], row["queue"]))
            view.waits.append((row["step"], row["worker"], row["wait_seconds"]))
            view.persistent, view.pinned = (row[name] == 1 if row[name] in (0, 1) else None for name in ("persistent", "pinned"))
        for row in self._beside["evaluations"].before(until):
            if not view.evaluated or view.evaluated[-1] != row["step"]:
                view.evaluated.append(row["step"])
        for row in self._beside["inputs"].before(until):
            view.inputs.append(InputSample(**row))
            if row["split"] == "val" and row["step"] not in view.evaluated:  # its losses may not have been heard
                view.evaluated.append(row["step"])
        yield from self._watch.ask()


class _Beside:
    """Rows of another table, handed out up to a step: those of the steps before it are all there."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._rows: dict[str, Column] = {}

    def before(self, step: int) -> Iterator[dict[str, Any]]:
        """The rows of steps before this one that were not handed out yet."""
        while True:
            if not self._rows or not len(self._rows["step"]):
                self._rows = self._follower.new_rows()
            ready = self._rows["step"] < step
            count = len(ready) if ready.all() else int(np.argmin(ready))
            taken = {name: values[:count].tolist() for name, values in self._rows.items()}
            self._rows = {name: values[count:] for name, values in self._rows.items()}
            yield from (dict(zip(taken, row, strict=True)) for row in zip(*taken.values(), strict=True))
            if count == 0 or len(self._rows["step"]):
                return


def findings_of(run: RunFolder) -> list[Finding]:
    """All that is found in a run's trainings; the lowest rank represents all."""
    trainings: dict[int, list[Recording]] = {}
    for recording in run.recordings():
        trainings.setdefault(recording.part, []).append(recording)
    findings = [finding for ranks in trainings.values() for finding in RunFollower(ranks[0]).end()]
    for ranks in trained_together(run.recordings()).values():
        findings += [*RanksFollower(ranks).read(), *SetupFollower(ranks).read()] if len(ranks) > 1 else ()
    return [*findings, *(MachineFollower(run, next(iter(trainings.values()))[0]).read() if trainings else ())]
