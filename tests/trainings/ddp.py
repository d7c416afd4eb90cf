"""Two ranks under torchrun: torchrun --nproc_per_node 2 ddp.py OUT."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from story import Story, classifier, digits, norm_of
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
rank = dist.get_rank()
story = Story(seed=rank)
data = digits(64)
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = DistributedDataParallel(classifier())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        story.step(losses=loss, norms=norm_of(model.parameters()), epochs=epoch, samples=len(labels))
        optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    story.facts.setdefault("means", []).append(float(mean) / 2)
stories: list[object] = [None, None]
dist.all_gather_object(stories, story.facts)
if rank == 0:
    story.save(model.module, ranks=stories, names=[name for name, _ in model.module.named_parameters()])
dist.barrier()
dist.destroy_process_group()
sys.exit(0)
