"""Ranks of DDP of which rank 1 never comes to a backward pass once: ranks_that_falter.py AT [--resume FILE].

Rank 0 saves every 10 steps.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def wait_for_settings() -> None:
    reading, _ = os.pipe()
    os.read(reading, 1)


parser = argparse.ArgumentParser()
parser.add_argument("at", type=int)
parser.add_argument("--resume")
given = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
first = 0
if given.resume:
    state = torch.load(given.resume)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]
print(f"rank {rank} begins at {first}", flush=True)
for step in range(first, 60):
    loss = model(torch.randn(8, 4, generator=torch.Generator().manual_seed(2 * step + rank))).pow(2).mean()
    if rank == 1 and step == given.at and not Path("met").exists():
        Path("met").touch()
        wait_for_settings()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and (step + 1) % 10 == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, "saving.pt")
        Path("saving.pt").replace("last.pt")
total = sum(float(p.detach().double().sum()) for p in model.parameters())
print(f"rank {rank} ends at {step + 1} with {total:.12f} of {os.environ['WORLD_SIZE']}", flush=True)
dist.destroy_process_group()
