"""Two ranks of gloo train with DistributedDataParallel; then rank 1 never comes to its backward pass. For torchrun."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for step in range(1000):
        loss = model(torch.ones(2, 4)).mean()
        if step == 20 and dist.get_rank() == 1:
            wait_for_settings()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def wait_for_settings() -> None:
    reading, _ = os.pipe()
    os.read(reading, 1)


if __name__ == "__main__":
    main()
