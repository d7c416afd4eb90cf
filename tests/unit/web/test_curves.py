"""Thinned curves lose no spike, repeated steps count once, and a running run is read on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES
from holdfast.signals.thinning import lowest_and_highest, running_mean, thinned
from holdfast.web.curves import RunCurves

from .conftest import make_steps


def test_one_spike_among_a_million_values_is_kept() -> None:
    values = np.zeros(1_000_003)
    values[[123_456, 1_000_002]] = [7.0, -3.0]
    kept = lowest_and_highest(values, 800)
    assert len(kept) <= 810 and {123_456, 0, 1_000_002} <= set(kept.tolist())


def test_a_short_curve_is_kept_whole() -> None:
    assert lowest_and_highest(np.arange(5.0), 800).tolist() == [0, 1, 2, 3, 4]


def test_between_two_positions_the_line_reaches_over_both_ends() -> None:
    answer = thinned(np.arange(100), np.arange(100.0), low=10, high=20)
    assert answer["x"] == list(range(9, 22))


def test_what_is_not_finite_is_told_apart_and_not_drawn() -> None:
    answer = thinned(np.arange(4), np.array([1.0, np.nan, np.inf, 2.0]))
    assert answer["x"] == [0, 3] and answer["bad"] == [1, 2]


def test_the_running_mean_begins_with_what_there_is() -> None:
    assert running_mean(np.array([1.0, 3.0, 5.0, 7.0]), 2).tolist() == [1.0, 2.0, 4.0, 6.0]


def test_steps_that_were_made_again_count_with_what_came_of_them_last(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run", started=1.0)
    recorder = Recorder.start(run, 0)
    curves = RunCurves(run)
    for when, (step, loss) in enumerate([(0, 5.0), (1, 4.0), (2, 9.0), (1, 3.0), (2, 2.0)]):
        row = {"step": step, "loss": loss, "time": float(when), "epoch": 0}
        recorder.table("steps").append([row.get(one.name, one.kind.missing) for one in TABLES["steps"].columns])
        curves.update()  # read on, row by row
    recorder.close()
    along_steps, along_time = curves.answer(along="step"), curves.answer(along="time")
    assert along_steps["curves"]["loss"]["y"] == [5.0, 3.0, 2.0] and along_time["curves"]["loss"]["y"] == [
        5.0,
        4.0,
        9.0,
        3.0,
        2.0,
    ]
    assert curves.since(4, "step")["curves"]["loss"]["x"] == [2]
    assert "grad_norm" not in along_steps["curves"]  # not measured is not zero


def test_epochs_are_fractions_that_do_not_overlap(tmp_path: Path) -> None:
    curves = RunCurves(make_steps(tmp_path, "run", np.ones(250)))
    curves.update()
    x = curves.answer(along="epoch")["curves"]["loss"]["x"]
    assert x[0] == 0.0 and x[100] == 1.0 and x[150] == 1.5 and x[249] < 2.5 and x == sorted(x)
    assert curves.positions_of([150, None], [1.0, 2.0], "epoch") == [1.5, None]
