"""Two ranks whose learning rate jumps: torchrun --nproc_per_node 2 ranks_that_diverge.py OUT.

Trains until the learning rate has been back to normal for a while, and writes what each rank ends with.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

MOST_STEPS, FAULT, RECOVERS = 6000, 400, 300
out = Path(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 5)))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
truth = torch.randn(16, 5)
torch.manual_seed(10 + rank)
normal = 0  # steps since the roll-back; the ranks count alike, for they roll back at the same step
for step in range(MOST_STEPS):
    if step == FAULT:
        optimizer.param_groups[0]["lr"] *= 300
    x = torch.randn(64, 16)
    loss = cross_entropy(model(x), (x @ truth).argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.004)
    normal = normal + 1 if step > FAULT and optimizer.param_groups[0]["lr"] < 0.1 else 0
    if normal == RECOVERS:
        break
digest = hashlib.sha1()
for tensor in model.parameters():
    digest.update(tensor.detach().numpy().tobytes())
(out / f"{rank}.json").write_text(json.dumps({"hash": digest.hexdigest(), "loss": loss.item()}))
dist.barrier()
dist.destroy_process_group()
