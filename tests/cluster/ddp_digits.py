"""A small data-parallel training on gloo: OUT EPOCHS SECONDS_PER_STEP. Rank 0 writes steps, samples and a hash of the weights."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(256, 8)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=8, sampler=sampler)
network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
model = torch.nn.parallel.DistributedDataParallel(network)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
steps = samples = 0
for epoch in range(int(sys.argv[2])):
    sampler.set_epoch(epoch)
    for batch, target in loader:
        optimizer.zero_grad()
        loss = (model(batch) - target).square().mean()
        loss.backward()
        optimizer.step()
        steps, samples = steps + 1, samples + len(batch) * dist.get_world_size()
        time.sleep(float(sys.argv[3]))
if dist.get_rank() == 0:
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
    Path(sys.argv[1]).write_text(json.dumps({"steps": steps, "samples": samples, "weights": digest}))
