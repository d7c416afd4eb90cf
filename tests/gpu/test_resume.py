"""On a GPU: a training goes on bit for bit with its data, and sharded parameters on a device come back to it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


class Loop:
    """A training with dropout on the device and workers that pin their batches."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 4)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=True)
        self.scaler = torch.amp.GradScaler("cuda", growth_interval=3)
        loader = DataLoader(TensorDataset(torch.randn(90, 8)), batch_size=8, shuffle=True, num_workers=2, pin_memory=True)
        self.batches = holdfast.Position(loader)
        self.losses: list[float] = []

    @property
    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler, "loader": self.batches}

    def train(self, steps: int, store: holdfast.CheckpointStore | None = None, save_at: int = -1) -> Loop:
        while True:
            for (batch,) in self.batches:
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = self.model(batch.cuda(non_blocking=True)).square().mean()
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
                self.losses.append(loss.item())
                if store is not None and len(self.losses) == save_at:
                    store.save(save_at, **self.parts)
                if len(self.losses) == steps:
                    return self


def test_a_training_on_a_gpu_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    store = holdfast.CheckpointStore(tmp_path)
    whole = Loop().train(30, store, save_at=17)
    store.close()
    again = Loop()
    torch.cuda.manual_seed(99)
    restored = store.restore(**again.parts)
    assert restored is not None and restored.step == 17
    again.train(13)
    assert again.losses == whole.losses[17:]
    for one, two in zip(whole.model.state_dict().values(), again.model.state_dict().values(), strict=True):
        assert torch.equal(one, two)


@pytest.fixture
def group() -> Iterator[None]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sharded(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4)).cuda()
    fully_shard(model, mesh=init_device_mesh("cuda", (1,)))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(16, 8, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_sharded_parameters_on_a_device_are_saved_and_come_back(group: None, tmp_path: Path) -> None:
    model, optimizer = sharded(0)
    for _ in range(3):
        step(model, optimizer)
    expected = [p.full_tensor().clone() for p in model.parameters()]
    store = holdfast.CheckpointStore(tmp_path)
    store.save(3, model=model, optimizer=optimizer)
    step(model, optimizer)  # what comes after the save is not in it
    store.wait()
    assert store.troubles == []
    other, other_optimizer = sharded(1)
    assert store.restore(model=other, optimizer=other_optimizer) is not None
    assert all(torch.equal(one, p.full_tensor()) for one, p in zip(expected, other.parameters(), strict=True))
    step(other, other_optimizer)
    on_the_host = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    assert store.restore(model=on_the_host) is not None
    assert all(torch.equal(one.cpu(), p) for one, p in zip(expected, on_the_host.parameters(), strict=True))
    store.close()
