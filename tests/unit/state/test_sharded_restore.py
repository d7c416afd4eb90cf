"""The weights alone come back from a checkpoint of a sharded training, for one who only wants to evaluate."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import holdfast

fsdp = pytest.importorskip("torch.distributed.fsdp", reason="needs torch.distributed")
if not hasattr(fsdp, "fully_shard"):
    pytest.skip("needs torch 2.6 or newer", allow_module_level=True)


def make_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def test_a_plain_model_takes_the_weights_of_a_sharded_training_without_its_optimizer(tmp_path: Path) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = fsdp.fully_shard(make_model(), mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
        store = holdfast.CheckpointStore(tmp_path)
        assert store.save(1, model=model, optimizer=optimizer, wait=True) is not None
        expected = [parameter.full_tensor().clone() for parameter in model.parameters()]
        store.close()
    finally:
        dist.destroy_process_group()
    plain = make_model()
    assert holdfast.CheckpointStore(tmp_path).restore(model=plain) is not None
    assert all(torch.equal(one, other) for one, other in zip(expected, plain.parameters(), strict=True))
