"""The store: which checkpoints stay, and what happens while one is being written."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from store_loop import Loop, assert_same

from holdfast.checkpoints.manifest import list_checkpoints
from holdfast.state import saver
from holdfast.state.store import CheckpointStore


def test_the_same_step_again_leaves_the_one_before(loop: Loop, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    first, second = (store.save(5, **loop.train(1).parts) for _ in range(2))
    assert store.wait() and first is not None and second is not None
    assert [first.name, second.name] == ["step-000005", "step-000005-2"] and len(store.list()) == 2
    restored = store.restore(**loop.parts)
    assert restored is not None and restored.path == second


def test_without_a_step_it_is_one_more(loop: Loop, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(41, **loop.parts, wait=True)
    path = CheckpointStore(tmp_path).save(**loop.parts, wait=True)
    assert path is not None and path.name == "step-000042"


# Which stay


def test_the_last_ones_some_epochs_and_the_best_stay(loop: Loop, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=2, every_epochs=5, best="val_loss")
    for epoch in range(1, 14):
        store.save(epoch, **loop.parts, epoch=epoch, metrics={"val_loss": abs(epoch - 7)})
    store.wait()
    assert [kept.step for kept in store.list()] == [5, 7, 10, 12, 13]
    assert store.best() == tmp_path / "step-000007" and store.newest_clean() == tmp_path / "step-000013"
    restored = store.restore(**loop.parts, at="best")
    assert restored is not None and restored.step == 7
    again = CheckpointStore(tmp_path, keep_last=1, every_epochs=None, best="val_loss")
    again.save(14, **loop.parts, metrics={"val_loss": torch.tensor(-1.0)}, wait=True)
    assert [kept.step for kept in again.list()] == [14] and again.best() == tmp_path / "step-000014"


@pytest.mark.parametrize(("metric", "best"), [("val_loss", 1), ("accuracy", 3), ("val/perplexity", 1), ("my_score", 3)])
def test_whether_lower_is_better_is_guessed_by_the_name(loop: Loop, tmp_path: Path, metric: str, best: int) -> None:
    store = CheckpointStore(tmp_path, best=metric, keep_last=9)
    for step, value in ((1, 0.1), (2, 0.2), (3, 0.3), (4, float("nan"))):
        store.save(step, **loop.parts, metrics={metric: value, "words": "no number"}, wait=True)
    assert store.best() == tmp_path / f"step-{best:06d}" and not store.troubles
    said = CheckpointStore(tmp_path, best=metric, lower_is_better=best == 3, keep_last=9)
    said.save(5, **loop.parts, wait=True)
    assert said.best() == tmp_path / f"step-{4 - best:06d}"


def test_a_state_that_is_not_finite_is_not_saved_is_never_the_best_and_is_told(loop: Loop, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, best="val_loss", keep_last=1)
    store.save(1, **loop.train(1).parts, metrics={"val_loss": 1.0}, wait=True)
    entry = loop.optimizer.state[loop.model.last.weight]
    entry["exp_avg"][0, :2] = torch.nan
    with pytest.warns(UserWarning, match=r"optimizers\.0\.state\.\d+\.exp_avg"):
        assert store.save(2, **loop.parts, metrics={"val_loss": 0.1}, wait=True) is None
    assert [kept.step for kept in store.list()] == [1] and store.best() == tmp_path / "step-000001"
    (row,) = store.troubles
    assert (row["code"], row["step"], row["evidence"]["bad_tensors"]) == ("checkpoint-non-finite", 2, 1)
    assert row["evidence"]["tensors"][0]["non_finite"] == 2
    entry["exp_avg"].zero_()
    loop.model.norm.running_var[0] = torch.inf
    assert store.save(3, **loop.parts, wait=True) is None, "a running statistic must be finite too"


# One at a time


def test_the_next_save_waits_for_the_one_before(loop: Loop, tmp_path: Path, gate: threading.Event) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, **loop.parts)
    second = threading.Thread(target=lambda: store.save(2, **loop.parts))
    second.start()
    second.join(0.2)
    assert second.is_alive() and list_checkpoints(tmp_path) == []
    gate.set()
    second.join(30)
    assert store.wait() and [kept.step for kept in store.list()] == [1, 2]


def test_a_save_that_is_stuck_costs_the_next_one_and_not_the_training(
    loop: Loop, tmp_path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "_STUCK", 0.0)
    store = CheckpointStore(tmp_path)
    store.save(1, **loop.parts)
    with pytest.warns(UserWarning, match="is stuck"):
        assert store.save(2, **loop.parts) is None
    gate.set()
    store.wait()
    assert store.save(3, **loop.parts, wait=True) is not None


def test_the_memory_for_the_copy_is_used_again(loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    block = saver.Block
    monkeypatch.setattr(saver, "Block", lambda size, *, pinned: made.append(size) or block(size, pinned=pinned))
    store = CheckpointStore(tmp_path)
    for step in range(1, 8):
        store.save(step, **loop.train(1).parts)
    assert len(made) == 1, "the optimizer had its state from the first step on"


def test_where_memory_is_short_it_is_written_from_the_trainings_own(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "available_memory", lambda: 100)
    store = CheckpointStore(tmp_path)
    store.save(3, **loop.train(3).parts)
    assert [kept.step for kept in store.list()] == [3], "it is there when save() returns"
    expected = loop.everything()
    store.restore(**loop.train(1).parts)
    assert_same(loop.everything(), expected)
