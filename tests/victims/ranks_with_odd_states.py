"""Two sharded ranks whose states are out of the ordinary: torchrun --nproc_per_node 2 ranks_with_odd_states.py FOLDER OUT.

A parameter without gradients, an infinite mask, a frozen layer; saved before the first step, between two backward passes, with
two models of one optimizer, and with an optimizer that keeps no state. Writes what each rank finds to OUT.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import holdfast
from holdfast.errors import CannotRestore


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.frozen = nn.Linear(6, 8), nn.Linear(8, 2), nn.Linear(4, 4).requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(5))
        self.register_buffer("mask", torch.full((3,), -torch.inf))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).relu())


def sharded(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return fully_shard(Odd(), mesh=init_device_mesh("cpu", (2,)))


def weights(*models: nn.Module) -> list[torch.Tensor]:
    return [getattr(p, "full_tensor", lambda p=p: p)().detach().clone() for model in models for p in model.parameters()]


def learn(batch: torch.Tensor, *models: nn.Module) -> None:
    torch.stack([model(batch).square().mean() for model in models]).sum().backward()


folder, out = Path(sys.argv[1]), Path(sys.argv[2])
dist.init_process_group("gloo")
batches = torch.randn(5, 4, 6, generator=torch.Generator().manual_seed(dist.get_rank()))
told: dict[str, Any] = {}

store = holdfast.CheckpointStore(folder / "one")
model = sharded()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
store.save(0, model=model, optimizer=optimizer, wait=True)
told["state before the first step"] = len(optimizer.state)
for batch in batches[:3]:
    learn(batch, model)
    optimizer.step()
    optimizer.zero_grad()
learn(batches[3], model)
store.save(3, model=model, optimizer=optimizer, gradients=True, wait=True)
learn(batches[4], model)
optimizer.step()
again = sharded(1)
fresh = torch.optim.AdamW(again.parameters(), lr=0.5)
store.restore(model=again, optimizer=fresh)
told["states"] = len(optimizer.state), len(fresh.state)
learn(batches[4], again)
fresh.step()
told["accumulated"] = weights(model), weights(again)
fresh = torch.optim.AdamW(again.parameters())
store.restore(model=again, optimizer=fresh, at=0)
told["restored before the first step"] = len(fresh.state)

fresh = torch.optim.AdamW(again.parameters())
fresh.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
try:
    store.restore(model=again, optimizer=fresh)
except CannotRestore as error:
    told["refused"] = error.problem, len(fresh.state)
other = fully_shard(nn.Linear(3, 3), mesh=init_device_mesh("cpu", (2,)))
fresh = torch.optim.AdamW(other.parameters())
try:
    store.restore(model=other, optimizer=fresh)
except CannotRestore as error:
    told["refused too"] = error.problem, len(fresh.state)

store = holdfast.CheckpointStore(folder / "two")
pair, pair_again = [sharded(2), sharded(3)], [sharded(4), sharded(5)]
both = torch.optim.Adam([p for model in pair for p in model.parameters()])
learn(batches[0], *pair)
both.step()
store.save(1, model=pair, optimizer=both, wait=True)
store.restore(model=pair_again, optimizer=torch.optim.Adam([p for model in pair_again for p in model.parameters()]))
told["two models"] = weights(*pair), weights(*pair_again)

store = holdfast.CheckpointStore(folder / "sgd")
plain = torch.optim.SGD(pair[0].parameters(), lr=0.1)
store.save(1, model=pair[0], optimizer=plain, wait=True)
plain.param_groups[0]["lr"] = 7.0
store.restore(model=pair[0], optimizer=plain)
told["lr"] = plain.param_groups[0]["lr"]

torch.save(told, out / f"{dist.get_rank()}.pt")
dist.barrier()
dist.destroy_process_group()
