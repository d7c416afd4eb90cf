"""Metrics that the script prints become rows of `evaluations`, marked as `printed`.

Lines wait until the training has made some more steps: by then what Holdfast measured itself at that point is recorded, and is
not written a second time. Lines from before the first step (settings, mostly) are not read. A metric of the training counts only
beside one of held-out data.
"""

from __future__ import annotations

import contextlib
import math
import queue
import re
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from holdfast.probe.niceness import be_nice
from holdfast.signals.run_folder import Recording, RunFolder, printed_folder
from holdfast.signals.schema import MISSING_INT
from holdfast.signals.trouble import Trouble
from holdfast.supervisor.begun import trainings
from holdfast.supervisor.judging import is_ours

if TYPE_CHECKING:
    from holdfast.logs.printed_metrics import Metric
    from holdfast.signals.recorder import Recorder

_EVERY_SECONDS = 0.5
_FINISH_SECONDS = 2.0
_AT_MOST_WAITING = 1 << 18  # bytes; of a script that prints more than that in half a second, the rest is not read
_DIGIT = re.compile(rb"\d")
_LATE_SECONDS = 0.25  # on a busy machine
_LATER_STEPS = 3  # rows of a GPU come a step or two after their step
_ROWS, _ALL_ROWS, _RECORDED = 4096, 1 << 20, 200
_PAUSE_SECONDS = 2e-4  # between two steps and not spent on them: an evaluation; without one it is a few microseconds


class _Line(NamedTuple):
    time: float
    text: str


class PrintedMetrics:
    """Takes what is printed and never blocks; a thread of its own reads it."""

    def __init__(self, run: RunFolder, trouble: Trouble) -> None:
        self._run, self._trouble = run, trouble
        self._parts: queue.SimpleQueue[tuple[float, int, bytes]] = queue.SimpleQueue()
        self._waiting, self._cut = 0, False  # bytes, and whether what came after them was not taken
        self._unfinished: dict[int, bytes] = {}  # the newest line of each channel
        self._lines: list[_Line] = []
        self._recording: Recording | None = None
        self._recorder: Recorder | None = None
        self._splits: dict[str, str] = {}  # of names that do not say it
        self._placed: dict[str, int] = {}  # the newest step of each metric
        self._written: set[tuple[int, str, str]] = set()  # a line may come so late that it seems to belong to the same step
        self._restarted = math.inf  # when, as long as the new process has no training yet
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="holdfast-printed", daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def put(self, part: bytes, channel: int) -> None:
        """Hand over what was printed."""
        fits = self._waiting + len(part) <= _AT_MOST_WAITING
        if fits:
            self._waiting += len(part)
            self._parts.put((time.time(), channel, b"\n" + part if self._cut else part))
        self._cut = not fits

    def restarts(self) -> None:
        """The command starts again: what it prints from now on is not of the training that ended."""
        self._restarted = time.time()

    def finish(self) -> None:
        """The command has ended: take what is left, within a bounded time."""
        self._stop.set()
        self._thread.join(_FINISH_SECONDS)

    def _work(self) -> None:
        be_nice()
        try:
            while not self._stop.wait(_EVERY_SECONDS):
                self._look(last=False)
            self._look(last=True)
        except Exception as error:  # noqa: BLE001 - the training continues without these rows
            self._trouble.step_back("reading metrics from the output", error)
        with contextlib.suppress(OSError):
            self._close()

    def _look(self, *, last: bool) -> None:
        new = list(self._new_lines())
        recordings = trainings(self._run) if new or self._lines else []
        if not recordings or not is_ours(self._run):  # of several machines, the one with the lowest rank writes
            return
        newest = max(
            (recording for recording in recordings if recording.rank == recordings[0].rank), key=lambda recording: recording.part
        )
        if newest != self._recording:
            self._settle(last=True)  # what was printed until then belongs to the training before
            self._close()
            self._recording, self._placed, self._written = newest, {}, set()
            self._restarted = math.inf
        self._lines += new
        self._settle(last=last)

    def _new_lines(self) -> Iterator[_Line]:
        self._waiting = 0
        while not self._parts.empty():
            when, channel, part = self._parts.get()
            *whole, rest = (self._unfinished.get(channel, b"") + part).split(b"\n")
            self._unfinished[channel] = rest[-_AT_MOST_WAITING:]
            for line in whole:
                if _DIGIT.search(line):
                    yield _Line(when, line.decode(errors="replace"))

    def _settle(self, *, last: bool) -> None:
        """Write the metrics in the lines after which some steps were made, or in all of them."""
        lines = [line for line in self._lines if line.time < self._restarted]
        if self._recording is None or not lines:
            return
        from holdfast.logs.printed_metrics import metrics_in

        steps = _Steps(self._recording, [step for step, *_ in self._recorded()])
        places = [steps.place_of(line.time) for line in lines]
        ready = [place for place in dict.fromkeys(places) if last or place + _LATER_STEPS <= len(steps.steps)]
        for place in ready:
            here = [line for line, its in zip(lines, places, strict=True) if its == place]
            metrics = metrics_in(line.text for line in here) if not steps.is_before_first(place) else []
            if metrics:
                self._write(metrics, steps, place, here[-1].time)
        waiting = [line for line, its in zip(lines, places, strict=True) if its not in ready]
        self._lines = waiting + self._lines[len(lines) :]

    def _write(self, metrics: list[Metric], steps: _Steps, place: int, when: float) -> None:
        from holdfast.logs.printed_metrics import is_recorded

        recorded = self._recorded()
        new: dict[tuple[int, str, str], tuple[int, float]] = {}  # epoch and value; of two for one step the later one
        for metric in metrics:
            after = steps.evaluation_before(place, when, self._placed.get(metric.name, -1))
            split = metric.split or self._split_of(metric.name, after)
            step, epoch = steps.at(place if after is None else after, metric.back)
            epoch = metric.epoch if epoch < 0 and metric.epoch is not None else epoch  # no loader counts them
            there = [(of == split, name, value) for at, of, name, value in recorded if abs(at - step) <= _LATER_STEPS]
            counts = split != "train" or metric.with_held_out
            written = (step, split, metric.name) in self._written
            if counts and not written and not is_recorded(metric.name, metric.value, there):
                new[step, split, metric.name] = (epoch, metric.value)
                self._placed[metric.name] = step
        if new:
            self._written |= new.keys()
            tables = self._tables()
            code, table = tables.strings.code, tables.table("evaluations")
            for (step, split, name), (epoch, value) in new.items():
                table.append((step, epoch, code(split), code(name), value, MISSING_INT, when, 1))

    def _recorded(self) -> list[tuple[int, str, str, float]]:
        """Step, split, name and value of the newest metrics that were not printed."""
        from holdfast.probe.rows import last_rows

        assert self._recording is not None
        rows = last_rows(self._recording.path, "evaluations", ("step", "split", "name", "value", "printed"), _RECORDED)
        known_rows = zip(*rows.values(), strict=True)
        return [
            (int(step), str(split), str(name), float(value)) for step, split, name, value, printed in known_rows if printed != 1
        ]

    def _split_of(self, name: str, after: int | None) -> str:
        """Of a name that says no split: held-out data if it was first printed after an evaluation, or after the last step."""
        return self._splits.setdefault(name, "train" if after is None else "val")

    def _tables(self) -> Recorder:
        """The tables beside those of the training, made with the first metric."""
        if self._recorder is None:
            from holdfast.signals.recorder import Recorder

            assert self._recording is not None
            path = printed_folder(self._recording.path)
            path.mkdir(parents=True, exist_ok=True)
            self._recorder = Recorder(self._run, Recording(self._recording.rank, self._recording.part, path))
        return self._recorder

    def _close(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.close()


class _Steps:
    """The newest steps of the training, and after how many of them it evaluated."""

    def __init__(self, recording: Recording, evaluated: list[int]) -> None:
        import numpy as np

        from holdfast.probe.rows import last_rows

        self._path = recording.path
        rows = last_rows(recording.path, "steps", ("step", "epoch", "time", "step_seconds"), _ROWS)
        self.steps, self._epochs, self._times, seconds = rows.values()
        paused = np.flatnonzero(np.diff(self._times) - seconds[1:] > _PAUSE_SECONDS) + 1
        self._evaluations = np.union1d(paused, np.searchsorted(self.steps, evaluated)) if len(self.steps) else paused

    def place_of(self, when: float) -> int:
        """How many steps were made when a line came."""
        return int(self._times.searchsorted(when))

    def is_before_first(self, place: int) -> bool:
        """Whether the training had made no step at a place; while it catches up after a restart, it has made none."""
        return place == 0 and len(self.steps) < _ROWS

    def evaluation_before(self, place: int, when: float, placed: int) -> int | None:
        """The evaluation after which a metric was printed: it comes a moment later, when the next steps may have been made.

        Not the one at step `placed`, which has a value of this metric already. After the last step, it is one of its own.
        """
        if place == len(self.steps):
            return place
        earlier = self._evaluations[self._evaluations <= place]
        if not len(earlier) or when - self._times[earlier[-1]] > _LATE_SECONDS:
            return None
        place_before = int(earlier[-1])
        return place_before if self.at(place_before, 0)[0] > placed else None

    def at(self, place: int, back: int) -> tuple[int, int]:
        """Step and epoch at a place, or where the epoch ended that was so many before it."""
        from holdfast.probe.rows import last_rows

        step, epoch = int(self.steps[max(place, 1) - 1]) + 1, int(self._epochs[max(place, 1) - 1])
        if back == 0 or epoch < 0:
            return step, epoch
        whole = last_rows(self._path, "steps", ("step", "epoch"), _ALL_ROWS)
        earlier = whole["step"][whole["epoch"] == epoch - back]
        return (int(earlier[-1]) + 1, epoch - back) if len(earlier) else (step, epoch)
