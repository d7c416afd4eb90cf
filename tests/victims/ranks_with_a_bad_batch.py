"""Two ranks, of which only rank 1 meets a bad batch: torchrun --nproc_per_node 2 ranks_with_a_bad_batch.py KIND BAD_STEP OUT.

KIND is `ddp`, `sharded` or `tensor` (parallel: rank 1 has a bad gradient in its part of the first layer). Writes what each rank
ends with, and how many collectives it took part in. A BAD_STEP that is negative leaves the batch of that step out instead of
spoiling it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

kind, bad, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
if kind == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
else:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model, mesh = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), init_device_mesh("cpu", (2,))
    if kind == "sharded":
        fully_shard(model, mesh=mesh)
    else:
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(10 if kind == "tensor" else 10 + rank)
x, y = torch.randn(20, 16, 8), torch.randint(0, 4, (20, 16))
if bad > 0 and rank == 1 and kind != "tensor":
    x[bad, 2, 3] = float("nan")
skipped = []
for step in range(20):
    if step == -bad:
        continue
    optimizer.zero_grad()
    before = [p.detach().clone() for p in model.parameters()]
    cross_entropy(model(x[step]), y[step]).backward()
    if kind == "tensor" and step == bad and rank == 1:
        next(model.parameters()).grad._local_tensor[0, 0] = float("nan")  # type: ignore[union-attr]
    optimizer.step()
    if all(a.equal(b) for a, b in zip(before, model.parameters(), strict=True)):
        skipped.append(step)
digest = hashlib.sha1()
for tensor in (*model.parameters(), *model.buffers()):
    digest.update(getattr(tensor, "_local_tensor", tensor).detach().numpy().tobytes())
group = dist.distributed_c10d._get_default_group()
collectives = group._get_sequence_number_for_group()
(out / f"{rank}.json").write_text(json.dumps({"hash": digest.hexdigest(), "skipped": skipped, "collectives": collectives}))
dist.barrier()
dist.destroy_process_group()
