"""The store: a state is restored from what is left, or it is said why not."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from store_loop import Loop, assert_same
from torch import nn

from holdfast.errors import CannotRestore
from holdfast.state.snapshots import Snapshots
from holdfast.state.store import CheckpointStore
from holdfast.state.training_state import TrainingState


def damage(path: Path, file: str = "weights.safetensors") -> None:
    data = bytearray((path / file).read_bytes())
    data[len(data) // 2] ^= 1
    (path / file).write_bytes(bytes(data))


@pytest.fixture
def saved(loop: Loop, tmp_path: Path) -> CheckpointStore:
    """Steps 1 to 5; the best is step 2."""
    store = CheckpointStore(tmp_path, keep_last=9, best="val_loss")
    for step in range(1, 6):
        store.save(step, **loop.train(1).parts, metrics={"val_loss": abs(step - 2)}, wait=True)
    return store


def test_a_damaged_one_is_passed_over_for_the_newest_earlier_clean_one(loop: Loop, saved: CheckpointStore) -> None:
    damage(saved.folder / "step-000005")
    damage(saved.folder / "step-000004", "training.pt")
    assert saved.newest_clean() == saved.folder / "step-000003"
    with pytest.warns(UserWarning, match="skipped"):
        restored = saved.restore(**loop.parts)
    assert restored is not None and restored.step == 3 and loop.loader.at == 3
    assert len(restored.skipped) == 2 and "step-000005" in restored.skipped[0] and "does not match" in restored.skipped[0]


def test_one_without_its_manifest_is_named_among_the_skipped(loop: Loop, saved: CheckpointStore) -> None:
    (saved.folder / "step-000005" / "manifest.json").unlink()
    with pytest.warns(UserWarning, match="is not a complete checkpoint"):
        restored = saved.restore(**loop.parts)
    assert restored is not None and restored.step == 4


@pytest.mark.parametrize(
    ("at", "broken", "expected"),
    [
        ("best", (), 2),
        ("best", (2,), 5),
        ("best", (2, 5), 4),
        (3, (), 3),
        (3, (3,), 2),
        ("last", (), 5),
        ("path", (4,), 3),
        ("path", (), 4),
    ],
)
def test_the_asked_one_then_the_last_then_earlier_ones(
    loop: Loop, saved: CheckpointStore, at: Any, broken: tuple[int, ...], expected: int
) -> None:
    for step in broken:
        damage(saved.folder / f"step-{step:06d}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        restored = saved.restore(**loop.parts, at=saved.folder / "step-000004" if at == "path" else at)
    assert restored is not None and restored.step == expected and loop.loader.at == expected


def test_if_none_can_be_used_it_is_said_and_the_training_is_as_it_was(loop: Loop, saved: CheckpointStore) -> None:
    for step in range(1, 6):
        damage(saved.folder / f"step-{step:06d}")
    before = loop.train(1).everything()
    with pytest.raises(CannotRestore, match="Nothing was restored"):
        saved.restore(**loop.parts)
    with pytest.raises(CannotRestore, match="no checkpoint 77"):
        saved.restore(**loop.parts, at=77)
    with pytest.raises(CannotRestore):
        saved.restore(**loop.parts, at=saved.folder / "step-000077")
    assert_same(loop.everything(), before)


def another(loop: Loop, what: str) -> dict[str, Any]:
    """The parts of a training, one of which is another than it was."""
    parts = loop.parts
    if what == "a wider layer":
        loop.model.last = nn.Linear(9, 3)
    elif what == "a layer more":
        loop.model.extra = nn.Linear(2, 2)
    elif what == "a layer less":
        del loop.model.frozen
    elif what == "another optimizer group":
        loop.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    elif what == "two optimizers":
        parts["optimizer"] = [loop.optimizer, torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)]
    else:
        parts["model"] = [loop.model, nn.Linear(2, 2)]
    return parts


@pytest.mark.parametrize(
    "what", ["a wider layer", "a layer more", "a layer less", "another optimizer group", "two optimizers", "two models"]
)
def test_what_does_not_fit_is_refused_with_nothing_changed(loop: Loop, saved: CheckpointStore, what: str) -> None:
    parts = another(loop, what)
    before = copy.deepcopy(loop.model.state_dict())
    generator = torch.get_rng_state()
    with pytest.raises(CannotRestore, match="does not fit") as caught:
        saved.restore(**parts)
    assert "checkpoints compare" in caught.value.fix
    assert_same(loop.model.state_dict(), before)
    assert torch.equal(torch.get_rng_state(), generator)


def test_only_the_model_is_restored_if_only_that_is_given_and_what_is_forgotten_is_said(
    loop: Loop, saved: CheckpointStore
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        restored = saved.restore(model=loop.model, randomness=False)
    assert restored is not None and set(restored.unused) == {"optimizer", "scheduler", "scaler", "ema", "loader"}
    with pytest.warns(UserWarning, match="also holds the state of scheduler, scaler, ema"):
        saved.restore(model=loop.model, optimizer=loop.optimizer)


def test_something_that_was_never_saved_is_not_made_up(loop: Loop, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, model=loop.model, wait=True)
    for name in ("optimizer", "scheduler", "scaler", "ema", "loader"):
        with pytest.raises(CannotRestore, match=f"holds no {name}"):
            store.restore(model=loop.model, **{name: loop.parts[name]})


def test_a_checkpoint_of_the_guard_and_one_of_the_store_are_the_same_thing(loop: Loop, tmp_path: Path) -> None:
    state = TrainingState([loop.model], [loop.optimizer])
    snapshots = Snapshots(lambda: state, memory_limit=1 << 28)
    loop.train(4)
    snapshots.take(4)
    path = snapshots.save(tmp_path)
    expected = copy.deepcopy([loop.model.state_dict(), loop.optimizer.state_dict()])
    store = CheckpointStore(tmp_path)
    restored = store.restore(model=loop.train(2).model, optimizer=loop.optimizer)
    assert restored is not None and restored.path == path
    assert_same([loop.model.state_dict(), loop.optimizer.state_dict()], expected)
    store.save(9, model=loop.model, optimizer=loop.optimizer, wait=True)
    loop.train(1)
    assert snapshots.restore_from_disk(tmp_path) == 9
    assert_same([loop.model.state_dict(), loop.optimizer.state_dict()], expected)
