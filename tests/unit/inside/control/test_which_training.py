"""After a restart each training of a script is recognised, or nothing is taken for its state."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.inside.control.which_training import WhichTraining, which_training
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder

ADAM = {"lr": 0.01, "betas": (0.9, 0.999), "params": []}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "a")


def begin(run: RunFolder, attempt: int, loss: float | None, monkeypatch: pytest.MonkeyPatch, lr: float = 0.01) -> WhichTraining:
    monkeypatch.setenv("HOLDFAST_ATTEMPT", str(attempt))
    which = which_training(run, 0, loss, {**ADAM, "lr": lr})
    Recorder.start(run, 0, 1, which.facts).close()
    return which


def test_folds_are_found_again_in_their_order_and_by_their_first_loss(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [begin(run, 1, loss, monkeypatch).folder for loss in (2.0, 2.1, 2.2)]
    assert folders == ["checkpoints", "checkpoints/training-2", "checkpoints/training-3"]
    again = [begin(run, 2, loss, monkeypatch) for loss in (2.0, 2.1 * (1 + 1e-6), 2.2, 2.3)]
    assert [which.folder for which in again[:3]] == folders and all(which.is_known for which in again[:3])
    assert not again[3].is_known and again[3].folder not in folders, "the first attempt did not get so far"
    assert [begin(run, 3, loss, monkeypatch).folder for loss in (2.0, 2.1)] == folders[:2]


def test_a_fold_is_not_taken_for_one_that_the_script_leaves_out_now(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [begin(run, 1, loss, monkeypatch).folder for loss in (2.0, 2.1)]
    which = begin(run, 2, 2.1, monkeypatch)
    assert which.is_known and which.folder == folders[1]


def test_without_seeds_none_of_several_is_recognised_and_the_only_one_is(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [begin(run, 1, loss, monkeypatch).folder for loss in (2.0, 2.1)]
    which = begin(run, 2, 1.9, monkeypatch)
    assert not which.is_known and which.folder not in folders
    alone = RunFolder.create(tmp_path, "alone")
    begin(alone, 1, 2.0, monkeypatch)
    which = begin(alone, 2, 1.9, monkeypatch)
    assert which.is_known and which.folder == "checkpoints"


@pytest.mark.parametrize("loss", [2.0, float("nan"), None])
def test_trials_with_the_same_first_loss_differ_by_the_settings_of_the_optimizer(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, loss: float | None
) -> None:
    folders = [begin(run, 1, loss, monkeypatch, lr).folder for lr in (0.1, 0.2)]
    which = begin(run, 2, loss, monkeypatch, 0.2)
    assert (which.folder == folders[1]) == which.is_known == (loss == 2.0)


def test_a_fold_may_have_the_same_first_loss_as_another(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [begin(run, 1, 2.0, monkeypatch).folder for _ in range(3)]
    assert [begin(run, 2, 2.0, monkeypatch).folder for _ in range(3)] == folders


def test_weights_from_a_pickle_tell_of_a_resume_if_the_first_attempt_had_others(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin_with(attempt: int, *, unpickled: bool) -> bool:
        monkeypatch.setenv("HOLDFAST_ATTEMPT", str(attempt))
        which = which_training(run, 0, 2.0, ADAM, unpickled=unpickled)
        Recorder.start(run, 0, 1, which.facts).close()
        return which.is_from_pickle

    found = [begin_with(attempt, unpickled=attempt > 1) for attempt in (1, 2, 3)]
    assert found == [False, True, True]
    other = RunFolder.create(run.path.parent, "b")
    monkeypatch.setattr("holdfast.inside.control.which_training._infos", {})
    for attempt in (1, 2):
        monkeypatch.setenv("HOLDFAST_ATTEMPT", str(attempt))
        which = which_training(other, 0, 2.0, ADAM, unpickled=True)
        Recorder.start(other, 0, 1, which.facts).close()
        assert not which.is_from_pickle, "it fine-tunes a model that was pickled whole"
