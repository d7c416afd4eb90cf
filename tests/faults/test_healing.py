"""`holdfast run --policy heal` repairs a training that breaks, and leaves one alone that does not.

A short version of `make bench-heal` and `make bench-healthy`, on the trainings of those benchmarks.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from heal_trainings.trial import LEAVES_ALONE, Trial, run

TRAINING = "heal_trainings/digits_mlp.py"


@cache
def clean() -> float:
    return float(run(TRAINING).said["accuracy"])


def healed(fault: str) -> Trial:
    trial = run(TRAINING, policy="heal", FAULT=fault)
    assert trial.exit_code == 0, trial.errors
    assert trial.said["accuracy"] >= 0.98 * clean(), trial.journal
    return trial


@pytest.mark.slow  # test_demo.py shows it too
def test_the_update_of_a_nan_batch_is_left_out() -> None:
    trial = healed("nan-batch")
    assert [(action["action"], action["step"]) for action in trial.actions] == [("skip-batch", 500)], trial.journal


@pytest.mark.slow  # ranks roll back in another test
def test_a_learning_rate_100_times_too_high_is_rolled_back() -> None:
    trial = healed("lr-x100")
    assert "roll-back" in [action["action"] for action in trial.actions], trial.journal


@pytest.mark.slow
def test_a_spike_that_recovers_is_left_alone() -> None:
    trial = healed("spike-that-recovers")
    assert {action["action"] for action in trial.actions} <= set(LEAVES_ALONE), trial.journal


@pytest.mark.slow  # test_drills_short.py shows it of another training
@pytest.mark.parametrize("name", ["heavy-tails", "q-learning", "high-momentum", "batch-of-one"])  # all: benchmarks/healthy.py
def test_a_healthy_training_sees_no_action(name: str) -> None:
    trial = run("healthy_trainings/zoo.py", name, policy="heal")
    assert trial.exit_code == 0, trial.errors
    assert [entry for entry in trial.journal if entry["kind"] == "action"] == []
    assert trial.findings == []
