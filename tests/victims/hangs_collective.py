"""Two ranks of gloo train; then rank 1 waits for a pipe while rank 0 is in all_reduce. For torchrun."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for step in range(1000):
        model(torch.ones(2, 4)).mean().backward()
        if step == 20 and dist.get_rank() == 1:
            wait_for_settings()
        average(model)
        optimizer.step()
        optimizer.zero_grad()


def average(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def wait_for_settings() -> None:
    reading, _ = os.pipe()
    os.read(reading, 1)


if __name__ == "__main__":
    main()
