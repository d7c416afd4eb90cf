"""The store: what is saved is the state at that moment, whole."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, load_model
from store_loop import Batches, Loop, assert_same
from torch import nn

from holdfast.state.store import CheckpointStore


def test_a_restored_training_goes_on_bit_for_bit(loop: Loop, tmp_path: Path) -> None:
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(3)
    store = CheckpointStore(tmp_path)
    assert store.restore(**loop.parts) is None
    loop.train(12)
    path = store.save(12, **loop.parts, epoch=1, metrics={"val_loss": 0.5}, settings={"lr": 0.01})
    expected = loop.train(20).everything()
    store.wait()
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
    monkeypatch.setattr("holdfast.state.objects._FROZEN_SMALL", 0)
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
