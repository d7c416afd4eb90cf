"""Curves of Holdfast's own runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from holdfast.logs.holdfast_run import of_equal_sums, read_run
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES


def test_losses_summed_over_more_and_more_backward_calls_do_not_rise() -> None:
    backwards = np.array([1, 1, 2, 2, 4, 4, 4, 4, 4])
    assert of_equal_sums(3.0 * backwards, backwards).tolist() == [12.0] * 9


def test_losses_of_the_same_number_of_backward_calls_stay_as_they_are() -> None:
    loss = np.array([0.1, np.nan, 0.3], np.float32)
    for backwards in (np.full(3, 2), np.full(3, -1)):
        assert np.array_equal(of_equal_sums(loss, backwards), loss, equal_nan=True)


def test_a_long_run_has_as_many_steps_as_it_made_however_its_curves_are_cut(tmp_path: Path) -> None:
    recorder = Recorder.start(RunFolder.create(tmp_path, "a"), 0)
    for step in range(500):
        known = {"step": step, "loss": 1.0}
        recorder.table("steps").append([known.get(column.name, column.kind.missing) for column in TABLES["steps"].columns])
    recorder.close()
    curves = read_run(RunFolder.open(tmp_path / "a"))
    assert len(curves.curves[0]) == 250 and curves.num_steps == 500


def test_another_training_of_the_script_is_no_later_attempt_at_the_first_one(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "a")
    for attempt, folder, first in ((1, "checkpoints", 0), (2, "checkpoints/training-2", 5), (2, "checkpoints", 8)):
        recorder = Recorder.start(run, 0, 1, {"attempt": attempt, "checkpoints": folder, "pid": attempt})
        for step in range(first, first + 10):
            known = {"step": step, "loss": float(attempt)}
            recorder.table("steps").append([known.get(column.name, column.kind.missing) for column in TABLES["steps"].columns])
        recorder.close()
    curves = read_run(run)
    assert curves.num_steps == 18 and list(curves.curves[0].values) == [1.0] * 8 + [2.0] * 10
