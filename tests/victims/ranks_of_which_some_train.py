"""Ranks of which the last one does not train: ranks_of_which_some_train.py KIND BAD_STEP OUT, with RANK, WORLD_SIZE and a store.

KIND is `fsdp1` or `fsdp2`. At BAD_STEP the batch of rank 1 is not finite; in the step after it, rank 1 has no gradient at all.
Writes the steps whose update was not made.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

kind, bad, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
how = {"rank": rank, "world_size": world, "timeout": timedelta(seconds=20)}
dist.init_process_group("gloo", init_method=f"file://{out / 'store'}", **how)
trainers = list(range(world - 1))
torch.manual_seed(0)
model: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
if kind == "fsdp1":
    from torch.distributed.fsdp import FullyShardedDataParallel

    group = dist.new_group(trainers)
    if rank in trainers:
        model = FullyShardedDataParallel(model, process_group=group, device_id=torch.device("cpu"), use_orig_params=True)
else:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh("cpu", trainers)
    if rank in trainers:
        fully_shard(model, mesh=mesh)
if rank not in trainers:  # it would draw samples, and comes to no collective
    while not all((out / f"{one}.json").exists() for one in trainers):
        time.sleep(0.1)
    sys.exit()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(10 + rank)
x = torch.randn(8, 16, 8)
if rank == 1:
    x[bad, 2, 3] = float("nan")
skipped = []
for step in range(8):
    optimizer.zero_grad()
    model(x[step]).square().mean().backward()
    if rank == 1 and step == bad + 1:
        optimizer.zero_grad()
    local = [getattr(p, "_local_tensor", p).detach() for p in model.parameters()]
    before = [tensor.clone() for tensor in local]
    optimizer.step()
    if all(a.equal(b) for a, b in zip(before, local, strict=True)):
        skipped.append(step)
(out / f"{rank}.json").write_text(json.dumps(skipped))
time.sleep(0.5)
