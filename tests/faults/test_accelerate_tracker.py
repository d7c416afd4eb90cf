"""Accelerate's tracker and state hooks: evaluations, listed checkpoints, an exact resume, a stop through the trigger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from holdfast_run import PYTHON, VICTIMS, run
from trained_with import KILLED, Trained, cut_short, python_with, verified

pytestmark = pytest.mark.slow
SCRIPT = "accelerate_loop.py"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp("accelerate")
    with python_with(folder, "accelerate", "holdfast.integrations.accelerate") as warm:
        yield Trained(warm, SCRIPT, folder)


def test_a_resume_in_the_middle_of_an_epoch_is_bit_equal_although_the_newest_checkpoint_is_torn(trained: Trained) -> None:
    _, whole = trained.end_of("uninterrupted", joins="all")
    assert trained.end_of("killed", "--kill-at", "17")[0] == KILLED
    cut_short(trained.folder / "killed/saved/step_16/model.safetensors")
    _, resumed = trained.end_of("killed", "--resume")
    assert resumed.pop("from") == "saved/step_12" and whole.pop("from") is None
    assert resumed == whole and whole["step"] == 30

    joined = trained.recorded("uninterrupted", "all")
    assert trained.runs("uninterrupted") == ["all"], "the tracker has joined the run that is there"
    rows = joined.table("evaluations").where(name="val_loss", split="val")
    assert [(row["step"], row["epoch"]) for row in rows] == [(10, 0), (20, 1), (30, 2)]
    names = [f"step_{step}" for step in range(4, 30, 4)]
    assert sorted(verified(joined)) == sorted(names)
    assert trained.listed("uninterrupted", "all") == dict.fromkeys(names, "clean")
    assert joined.run.info()["settings"] == {"epochs": 3}

    own = trained.recorded("killed", "acc-2")
    assert own.steps["step"] == [*range(12, 30)] and own.findings == []


def test_patience_stops_through_the_trigger(tmp_path: Path) -> None:
    words = ("--policy", "heal", "--patience", "3", "--name", "a", PYTHON, str(VICTIMS / SCRIPT), "--epochs", "4000")
    done = run(tmp_path, *words, "--save-every", "100000")
    assert done.returncode == 0 and "has not improved for 3 evaluations" in done.stderr, done.stderr
    assert '"stopped": true' in done.stdout, "the loop has ended by itself"
