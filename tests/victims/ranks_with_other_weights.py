"""Two ranks under DDP, of which the second changes its weights by hand after they were made equal."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> nn.Module:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)))
    if dist.get_rank() == 1:
        with torch.no_grad():
            model.module[0].weight.mul_(1.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(40):
        inputs = torch.randn(16, 8)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()
    return model


if __name__ == "__main__":
    kept = main()  # DDP that is freed while gloo's thread frees its last work waits for ever: both want the GIL
