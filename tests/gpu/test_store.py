"""On a GPU: a save is the state at that moment, in order with what the device does before and after; the host does not wait."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.state.store import CheckpointStore

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


class Loop:
    """A training large enough for the copies to outlast several steps: 50 MB of weights, tiny batches."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        width = 1024
        layers = [nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.1)) for _ in range(12)]
        self.model = nn.Sequential(*layers, nn.Linear(width, 10)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=256.0, growth_interval=5)

    @property
    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler}

    def train(self, steps: int) -> Loop:
        for _ in range(steps):
            x = torch.randn(16, 1024, device="cuda")
            self.scaler.scale(self.model(x).square().mean()).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
        return self

    def everything(self) -> dict[str, Any]:
        return copy.deepcopy({name: part.state_dict() for name, part in self.parts.items()})


def assert_same(left: Any, right: Any, path: str = "") -> None:
    if isinstance(left, torch.Tensor):
        assert left.device == right.device and torch.equal(left, right), path
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), path
        for key in left:
            assert_same(left[key], right[key], f"{path}.{key}")
    else:
        assert left == right, path


def test_a_restored_training_goes_on_bit_for_bit(tmp_path: Path) -> None:
    loop, store = Loop().train(5), CheckpointStore(tmp_path)
    store.save(5, **loop.parts)
    expected = loop.train(10).everything()
    other = Loop(seed=3)
    assert store.restore(**other.parts) is not None
    assert_same(other.train(10).everything(), expected)


def test_what_the_script_does_next_to_its_weights_is_not_in_the_checkpoint(tmp_path: Path) -> None:
    """Also behind torch's back, through `.data`, and with no optimizer in between."""
    loop, store = Loop().train(3), CheckpointStore(tmp_path, keep_last=100)
    store.save(1, **loop.parts, wait=True)  # makes the memory
    for step in range(2, 12):
        with torch.no_grad():
            for parameter in loop.model.parameters():
                parameter.data.fill_(step)
        store.save(step, **loop.parts)
        for parameter in loop.model.parameters():
            parameter.data.fill_(-1.0)
    for step in range(2, 12):
        store.restore(**loop.parts, at=step)
        assert all(bool((parameter == step).all()) for parameter in loop.model.parameters()), step


def test_the_host_does_not_wait_for_the_device(tmp_path: Path) -> None:
    loop, store = Loop().train(3), CheckpointStore(tmp_path)
    store.save(1, **loop.parts, wait=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # about a second
    begun = time.perf_counter()
    store.save(2, **loop.parts, metrics={"val_loss": loop.model[0][0].weight.sum()})
    assert not torch.cuda.current_stream().query(), "the device has not even come to the copies"
    assert time.perf_counter() - begun < 0.5
    store.wait()
    assert "val_loss" in store.list()[-1].metrics


def test_a_nan_on_the_gpu_is_never_saved(tmp_path: Path) -> None:
    loop, store = Loop().train(3), CheckpointStore(tmp_path)
    store.save(1, **loop.parts, wait=True)
    with torch.no_grad():
        loop.model[5][0].weight[3, 7] = torch.nan
    with pytest.warns(UserWarning, match="5.0.weight"):
        assert store.save(2, **loop.parts, wait=True) is None
    assert [kept.step for kept in store.list()] == [1]


def test_the_memory_is_pinned_and_used_again(tmp_path: Path) -> None:
    loop, store = Loop().train(3), CheckpointStore(tmp_path)
    blocks = set()
    for step in range(4):
        store.save(step, **loop.parts, wait=True)
        block = store._saver._block
        assert block is not None and block.pinned
        blocks.add(block.memory.ctypes.data)
    assert len(blocks) == 1
    store.close()
