"""The store: what is saved is the state at that moment, whole; what fails is told and never raised into the loop."""

from __future__ import annotations

import copy
import errno
import gc
import json
import os
import random
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, load_model
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import holdfast
from holdfast.checkpoints.manifest import list_checkpoints, read_manifest
from holdfast.errors import CannotRestore, UsageError
from holdfast.inside.saving import host_state, saver
from holdfast.inside.saving.store import CheckpointStore
from holdfast.inside.snapshots.snapshots import Snapshots
from holdfast.inside.snapshots.state import TrainingState


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:  # small sums are slower with several, and far slower beside other tests
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Net(nn.Module):
    """Tied weights, BatchNorm, dropout, a frozen part, a mask that is infinite on purpose and is in no state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second, self.tied = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.tied.weight = self.second.weight
        self.frozen, self.last, self.drop = nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 3), nn.Dropout(0.2)
        self.register_buffer("mask", torch.full((2,), -torch.inf), persistent=False)
        self.register_buffer("bias_mask", torch.tensor([0.0, -torch.inf]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(self.tied(self.frozen(self.second(self.norm(self.first(x)).relu())).relu())))


class Shadow:
    """An average of somebody's own kind."""

    def __init__(self, model: nn.Module) -> None:
        self.updates, self.values = 0, [p.detach().clone() for p in model.parameters()]

    def update(self, model: nn.Module) -> None:
        self.updates += 1
        for value, parameter in zip(self.values, model.parameters(), strict=True):
            value.lerp_(parameter.detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates, self.values = state["updates"], list(state["values"])


class Batches:
    """A loader that knows where it is."""

    def __init__(self) -> None:
        self.at, self.seen = 0, torch.zeros(3)

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.seen = state["at"], state["seen"]


class Loop:
    """A small real training with everything that people have."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = Net()
        self.optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 1e-2, total_steps=500)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=7)
        self.ema = [AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9)), Shadow(self.model)]
        self.loader = Batches()

    @property
    def parts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("model", "optimizer", "scheduler", "scaler", "ema", "loader")}

    def train(self, steps: int) -> Loop:
        for _ in range(steps):
            x = torch.randn(16, 6) + random.random() + float(np.random.rand())
            self.scaler.scale(self.model(x).square().mean()).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            self.scheduler.step()
            self.ema[0].update_parameters(self.model)
            self.ema[1].update(self.model)
            self.loader.at += 1
            self.loader.seen += 1
        return self

    def everything(self) -> dict[str, Any]:
        things = {
            "model": [self.model.state_dict(), self.model.mask],
            "optimizer": self.optimizer.state_dict(),
            "scheduler": {k: v for k, v in self.scheduler.state_dict().items() if not callable(v)},
            "scaler": self.scaler.state_dict(),
            "ema": [average.state_dict() for average in self.ema],
            "loader": self.loader.state_dict(),
        }
        return copy.deepcopy(things)


def assert_same(left: Any, right: Any, path: str = "") -> None:
    """Equal to the last bit, in all parts."""
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype and torch.equal(left, right), path
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), path
        for key in left:
            assert_same(left[key], right[key], f"{path}.{key}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), path
        for number, (a, b) in enumerate(zip(left, right, strict=True)):
            assert_same(a, b, f"{path}[{number}]")
    else:
        assert left == right, path


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A disk that writes only once the event is set."""
    event, write = threading.Event(), saver.write_checkpoint

    def slow(*args: Any, **kwargs: Any) -> Path:
        assert event.wait(30)
        return write(*args, **kwargs)

    monkeypatch.setattr(saver, "write_checkpoint", slow)
    yield event
    event.set()


# Saving and restoring


def test_a_restored_training_goes_on_bit_for_bit(loop: Loop, tmp_path: Path) -> None:
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(3)
    store = CheckpointStore(tmp_path)
    assert store.restore(**loop.parts) is None
    loop.train(12)
    path = store.save(12, **loop.parts, epoch=1, metrics={"val_loss": 0.5}, settings={"lr": 0.01})
    expected = loop.train(20).everything()
    other = Loop(seed=9)
    restored = CheckpointStore(tmp_path).restore(**other.parts)
    assert restored is not None and (restored.path, restored.step, restored.epoch) == (path, 12, 1)
    assert restored.metrics == {"val_loss": 0.5} and restored.settings == {"lr": 0.01} and not restored.skipped
    assert_same(other.train(20).everything(), expected)


def test_what_is_done_to_the_training_after_save_returned_is_not_in_the_checkpoint(
    loop: Loop, tmp_path: Path, gate: threading.Event
) -> None:
    store = CheckpointStore(tmp_path)
    loop.train(3)
    expected = loop.everything()
    store.save(3, **loop.parts)
    loop.train(2)
    with torch.no_grad():
        for tensor in (*loop.model.parameters(), *loop.model.buffers()):
            tensor.fill_(7)
    for entry in loop.optimizer.state.values():
        for value in entry.values():
            value.zero_()
    gate.set()
    other = Loop(seed=4)
    assert store.restore(**other.parts) is not None
    assert_same(other.everything(), expected)


def test_a_checkpoint_is_used_without_holdfast(loop: Loop, tmp_path: Path) -> None:
    path = CheckpointStore(tmp_path).save(5, **loop.train(5).parts, wait=True)
    assert path is not None
    state, other = load_file(path / "weights.safetensors"), Loop(seed=8)
    assert {*state, "tied.weight"} == loop.model.state_dict().keys(), "what is tied is written once"
    assert all(torch.equal(value, loop.model.state_dict()[name]) for name, value in state.items())
    load_model(other.model, path / "weights.safetensors")
    training = torch.load(path / "training.pt", weights_only=True)
    other.optimizer.load_state_dict(training["optimizers"][0])
    other.scaler.load_state_dict(training["scalers"][0])
    other.scheduler.load_state_dict({**other.scheduler.state_dict(), **training["schedulers"][0]})
    for name in ("model", "optimizer", "scaler", "scheduler"):
        assert_same(other.everything()[name], loop.everything()[name])
    assert (training["step"], training["epoch"], training["loader"]["at"]) == (5, None, 5)


def test_a_model_without_ties_loads_strictly_from_its_file(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), nn.BatchNorm2d(4))
    path = CheckpointStore(tmp_path).save(1, model=model, wait=True)
    assert path is not None
    assert torch.load(path / "training.pt", weights_only=True)["optimizers"] == []
    other = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    other.load_state_dict(load_file(path / "weights.safetensors"), strict=True)
    assert_same(other.state_dict(), model.state_dict())


def test_averages_have_the_names_of_the_model(loop: Loop, tmp_path: Path) -> None:
    path = CheckpointStore(tmp_path).save(1, **loop.train(3).parts, wait=True)
    assert path is not None
    load_model(loop.model, path / "averages.safetensors")
    assert_same(loop.model.state_dict(), loop.ema[0].module.state_dict())


def test_several_models_and_optimizers(tmp_path: Path) -> None:
    models = [nn.Linear(2, 3), nn.Linear(3, 2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]
    store = CheckpointStore(tmp_path)
    path = store.save(1, model=models, optimizer=optimizers, wait=True)
    assert path is not None and (path / "weights-1.safetensors").exists()
    others = [nn.Linear(2, 3), nn.Linear(3, 2)]
    assert store.restore(model=others) is not None
    assert_same([model.state_dict() for model in others], [model.state_dict() for model in models])


def test_a_wrapped_model_is_saved_under_the_names_of_the_model_inside(tmp_path: Path) -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    model = nn.Linear(2, 3)
    store = CheckpointStore(tmp_path)
    path = store.save(1, model=Wrapper(model), wait=True)
    assert path is not None and load_file(path / "weights.safetensors").keys() == {"weight", "bias"}
    assert store.restore(model=model) is not None and store.restore(model=Wrapper(nn.Linear(2, 3))) is not None


def test_a_large_frozen_part_is_saved_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.inside.snapshots.reading._FROZEN_SMALL", 0)
    model = nn.Sequential(nn.Linear(64, 64).requires_grad_(False), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    path = CheckpointStore(tmp_path).save(1, model=model, optimizer=optimizer, wait=True)
    assert path is not None and load_file(path / "weights.safetensors").keys() == model.state_dict().keys()


def test_numbers_that_safetensors_cannot_hold_are_kept_beside_it(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("phase", torch.randn(3, dtype=torch.complex128))
    expected = model.phase.clone()
    store = CheckpointStore(tmp_path)
    store.save(1, model=model, wait=True)
    model.phase.zero_()
    assert store.restore(model=model) is not None and torch.equal(model.phase, expected)


def test_a_scaler_that_is_switched_off_and_one_of_another_kind(tmp_path: Path) -> None:
    model, off, own = nn.Linear(2, 2), torch.amp.GradScaler("cpu", enabled=False), Batches()
    store = CheckpointStore(tmp_path)
    store.save(1, model=model, scaler=[off, own], wait=True)
    own.at = 17
    assert store.restore(model=model, scaler=[off, own]) is not None and own.at == 0


class Remembers(nn.Module):
    """A layer that keeps more than tensors in its state dict, as those of 8-bit training do."""

    def __init__(self, extra: Any) -> None:
        super().__init__()
        self.weight, self.extra = nn.Parameter(torch.ones(2)), extra

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


def test_what_a_layer_keeps_beside_tensors_is_saved_too(tmp_path: Path) -> None:
    model = nn.Sequential(Remembers(torch.arange(5, dtype=torch.uint8)), Remembers({"amax": [1.5, 2.5], "format": "e4m3"}))
    other = nn.Sequential(Remembers(torch.zeros(9, dtype=torch.uint8)), Remembers(None))
    store = CheckpointStore(tmp_path)
    path = store.save(1, model=model, wait=True)
    assert path is not None and "0._extra_state" in load_file(path / "weights.safetensors")
    assert store.restore(model=other) is not None
    assert_same([layer.extra for layer in other], [layer.extra for layer in model])


class Odd:
    """A schedule with an array, and a function in its state that nobody can keep."""

    def __init__(self) -> None:
        self.table, self.shape, self.steps = np.arange(6.0).reshape(2, 3), len, 0

    def state_dict(self) -> dict[str, Any]:
        return {"table": self.table, "shape": self.shape, "steps": self.steps, "seen": {torch.device("cpu"): 1}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.table, self.shape, self.steps = state["table"], state["shape"], state["steps"]


def test_arrays_are_kept_and_what_cannot_be_kept_stays_as_it_is(tmp_path: Path) -> None:
    model, odd, other, store = nn.Linear(2, 2), Odd(), Odd(), CheckpointStore(tmp_path)
    odd.table *= 2
    odd.steps = 7
    with pytest.warns(UserWarning, match=r"shape \(builtin_function_or_method\), seen\[device\]"):
        store.save(1, model=model, scheduler=odd, wait=True)
    assert store.restore(model=model, scheduler=other) is not None
    assert other.steps == 7 and other.shape is len and np.array_equal(other.table, odd.table) and other.table.flags.writeable


def test_an_object_with_slots_is_saved(tmp_path: Path) -> None:
    class Slots:
        __slots__ = ("n",)

        def state_dict(self) -> dict[str, int]:
            return {"n": self.n}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.n = state["n"]

    thing, model, store = Slots(), nn.Linear(2, 2), CheckpointStore(tmp_path)
    thing.n = 4
    store.save(1, model=model, scheduler=thing, wait=True)
    thing.n = 5
    assert store.restore(model=model, scheduler=thing) is not None and thing.n == 4


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


def test_or_is_left_out_while_that_one_is_under_way(loop: Loop, tmp_path: Path, gate: threading.Event) -> None:
    store = CheckpointStore(tmp_path, busy="drop")
    assert store.save(1, **loop.parts) is not None
    assert [store.save(step, **loop.parts) for step in range(2, 20)] == [None] * 18
    assert not store.wait(0.01)
    gate.set()
    assert store.wait() and store.save(20, **loop.parts, wait=True) is not None
    assert [kept.step for kept in store.list()] == [1, 20] and not store.troubles


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
    block = host_state.Block
    monkeypatch.setattr(host_state, "Block", lambda size, *, pin: made.append(size) or block(size, pin=pin))
    store = CheckpointStore(tmp_path)
    for step in range(1, 8):
        store.save(step, **loop.train(1).parts)
    assert len(made) == 1, "the optimizer had its state from the first step on"
    other = CheckpointStore(tmp_path)
    store.wait()
    other.restore(**loop.parts)
    other._saver._helper.close()
    assert len(made) == 2, "made while the training begins"
    other.save(9, **loop.parts, wait=True)
    assert len(made) == 2


def test_where_memory_is_short_it_is_written_from_the_trainings_own(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_state, "available_memory", lambda: 100)
    store = CheckpointStore(tmp_path)
    store.save(3, **loop.train(3).parts)
    assert [kept.step for kept in store.list()] == [3], "it is there when save() returns"
    expected = loop.everything()
    store.restore(**loop.train(1).parts)
    assert_same(loop.everything(), expected)


# What fails


def refuse(number: int) -> Callable[..., Any]:
    def call(*_: object, **__: object) -> Any:
        raise OSError(number, os.strerror(number))

    return call


def test_a_full_disk_is_a_finding_and_saving_goes_on_when_there_is_room(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    store.save(1, **loop.parts, wait=True)
    with monkeypatch.context() as full, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        full.setattr(os, "fsync", refuse(errno.ENOSPC))
        for step in (2, 3, 4):
            store.save(step, **loop.train(1).parts)
        store.wait()
    assert [str(one.message)[:9] for one in told] == ["holdfast:"], "said once"
    assert [row["code"] for row in store.troubles] == ["disk-full"] * 3
    assert [kept.step for kept in store.list()] == [1] and [path.name for path in tmp_path.iterdir()] == ["step-000001"]
    assert store.save(5, **loop.parts, wait=True) is not None and [kept.step for kept in store.list()] == [5]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EIO, errno.ESTALE])
def test_other_trouble_has_a_code_of_its_own(loop: Loop, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path)
    monkeypatch.setattr(Path, "mkdir", refuse(number))
    with pytest.warns(UserWarning, match=os.strerror(number)):
        assert store.save(1, **loop.parts, wait=True) is None
    assert [row["code"] for row in store.troubles] == ["checkpoint-not-saved"]


@pytest.mark.parametrize(
    "wrong", [{"model": {}}, {"model": None}, {"optimizer": 3}, {"loader": object()}, {"scheduler": "cosine"}]
)
def test_a_wrong_argument_after_eight_hours_does_not_end_the_training(loop: Loop, tmp_path: Path, wrong: dict[str, Any]) -> None:
    store = CheckpointStore(tmp_path)
    with pytest.warns(UserWarning, match="holdfast:"):
        assert store.save(1, **{**loop.parts, **wrong}) is None
    assert store.troubles[0]["code"] == "checkpoint-not-saved"


def test_a_wrong_setting_of_the_store_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="keep_last"):
        CheckpointStore(tmp_path, keep_last=0)
    with pytest.raises(UsageError, match="busy"):
        CheckpointStore(tmp_path, busy="later")  # type: ignore[arg-type]


def test_what_was_not_read_back_whole_is_no_checkpoint_and_costs_no_older_one(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that says it has written and gives other bytes back."""
    store = CheckpointStore(tmp_path, keep_last=1)
    store.save(1, **loop.parts, wait=True)
    write = saver.write_checkpoint

    def forgetful(*args: Any, **kwargs: Any) -> Path:
        path = write(*args, **kwargs)
        data = bytearray((path / "weights.safetensors").read_bytes())
        data[-3] ^= 1
        (path / "weights.safetensors").write_bytes(bytes(data))
        return path

    monkeypatch.setattr(saver, "write_checkpoint", forgetful)
    with pytest.warns(UserWarning, match="does not match"):
        assert store.save(2, **loop.parts, wait=True) is None
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


def test_old_ones_that_cannot_be_removed_cost_nothing(loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    store.save(1, **loop.parts, wait=True)
    monkeypatch.setattr(saver, "retain", refuse(errno.EACCES))
    with pytest.warns(UserWarning, match="Permission denied"):
        assert store.save(2, **loop.parts, wait=True) is not None
    assert [row["code"] for row in store.troubles] == ["holdfast-degraded"] and len(store.list()) == 2


# Restoring from what is left


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
    with pytest.warns(UserWarning, match="passed over"):
        restored = saved.restore(**loop.parts)
    assert restored is not None and restored.step == 3 and loop.loader.at == 3
    assert len(restored.skipped) == 2 and "step-000005" in restored.skipped[0] and "does not match" in restored.skipped[0]


def test_one_without_its_manifest_is_named_among_the_skipped(loop: Loop, saved: CheckpointStore) -> None:
    (saved.folder / "step-000005" / "manifest.json").unlink()
    with pytest.warns(UserWarning, match="is not whole"):
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


# The end of the process, and its children

AT_ONCE = """
import sys, torch, holdfast
model = torch.nn.Linear(300, 300)
store = holdfast.CheckpointStore(sys.argv[1])
store.save(1, model=model)
"""
FORKED = """
import os, sys, torch, holdfast, multiprocessing
torch.set_num_threads(1)  # a process that forks while torch's own threads are being started is none to judge by
model = torch.nn.Linear(300, 300)
store = holdfast.CheckpointStore(sys.argv[1])
def child():
    if sys.argv[2] == "saves":
        store.save(2, model=model)
if __name__ == "__main__":
    store.save(1, model=model)
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    if os.fork() == 0:
        sys.exit(0)
    os.wait()
"""


def run_script(text: str, *words: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", text, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_save_that_is_under_way_when_the_script_ends_is_finished(tmp_path: Path) -> None:
    run_script(AT_ONCE, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


@pytest.mark.parametrize(("what", "steps"), [("nothing", ["step-000001"]), ("saves", ["step-000001", "step-000002"])])
def test_a_forked_child_leaves_its_parents_save_alone_and_may_save_itself(tmp_path: Path, what: str, steps: list[str]) -> None:
    run_script(FORKED, str(tmp_path), what)
    assert sorted(path.name for path in tmp_path.iterdir()) == steps


# In a run


@pytest.mark.parametrize("policy", ["observe", "guard", "heal"])
def test_run_save_finds_everything_and_tells_the_journal(tmp_path: Path, policy: str) -> None:
    gc.collect()  # scalers of other tests would be found
    loop = Loop()
    with holdfast.watch(loop.model, loop.optimizer, folder=tmp_path, name="run", policy=policy) as run:
        run.settings(batch=16)
        for step in range(3):
            loop.train(1)
            path = run.save(metrics={"val_loss": 1.0 - step / 10})
        elsewhere = run.save(tmp_path / "mine", wait=True)
    assert path == run.folder / "checkpoints" / "step-000003" and elsewhere == tmp_path / "mine" / "step-000003"
    manifest = read_manifest(path)
    assert manifest is not None and manifest["settings"] == {"batch": 16} and manifest["run"] == str(run.folder)
    rows = [json.loads(line) for line in (run.folder / "journal.jsonl").read_text().splitlines()]
    saved = [row for row in rows if row["kind"] == "checkpoint" and row["event"] == "saved" and row.get("by") != "guard"]
    assert {str(path), str(elsewhere)} <= {row["path"] for row in saved if row["step"] == 3}
    training = torch.load(path / "training.pt", weights_only=True)
    assert [len(training[kind]) for kind in ("optimizers", "schedulers", "scalers")] == [1, 1, 1]
    other = Loop(seed=5)
    assert CheckpointStore(path.parent).restore(model=other.model, randomness=False) is not None
    assert_same(other.model.state_dict(), loop.model.state_dict())


def test_run_save_before_the_first_step_and_with_nothing_to_save(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.watch(model, optimizer, folder=tmp_path, name="early") as run:
        path = run.save(wait=True)
        assert path is not None and load_file(path / "weights.safetensors").keys() == {"weight", "bias"}
    del model, optimizer
    gc.collect()  # what other tests left would be found
    with holdfast.watch(folder=tmp_path, name="empty") as run, pytest.warns(UserWarning, match="no training"):
        assert run.save() is None


def test_a_store_of_ones_own_tells_the_open_run(loop: Loop, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "mine")
    with holdfast.watch(loop.model, loop.optimizer, folder=tmp_path, name="run") as run:
        store.save(1, **loop.train(1).parts, wait=True)
        loop.model.last.weight.data[0, 0] = torch.nan
        with pytest.warns(UserWarning):
            store.save(2, **loop.parts, wait=True)
        store.restore(**loop.parts)
    rows = [json.loads(line) for line in (run.folder / "journal.jsonl").read_text().splitlines()]
    told = [
        (row["kind"], row.get("event", row.get("code")), row["step"]) for row in rows if row["kind"] in ("checkpoint", "finding")
    ]
    assert [row for row in told if row[1] != "non-finite-weights"] == [
        ("checkpoint", "saved", 1),
        ("finding", "checkpoint-non-finite", 2),
        ("checkpoint", "loaded", 1),
    ]
