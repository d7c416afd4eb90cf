"""Train with little address space left, so that the host's allocator really fails: host_memory_limit.py FOLDER POLICY."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch
from torch import nn

import holdfast

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 4096), nn.Tanh(), nn.Linear(4096, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(32768, 8), torch.randn(32768, 1)
(model(x[:64]) - y[:64]).square().mean().backward()  # libraries take their memory before the limit is set
optimizer.zero_grad()

with holdfast.watch(model, optimizer, folder=sys.argv[1], name="limited", policy=sys.argv[2]) as run:
    sizes = []

    @run.step
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = (model(x) - y).square().mean()
        sizes.append(len(x))
        return loss

    taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + (300 << 20), resource.RLIM_INFINITY))  # one activation takes 512 MiB
    for _ in range(2):
        print(f"{step(x, y):.6f}")
        optimizer.step()
        optimizer.zero_grad()
print("sizes", *sizes)
