"""Two ranks under DDP with `@run.step`: torchrun --nproc_per_node 2 ranks_out_of_memory.py FOLDER CASE...

Cases: `fits`; `split`, every batch in four parts, as after a restart; `runs-out`, memory runs out on both ranks.
"""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import holdfast


def train(folder: Path, case: str) -> dict[str, Any]:
    rank = dist.get_rank()
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    model = DistributedDataParallel(inner, bucket_cap_mb=0.005)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    losses, outcome = [], "trained"
    with holdfast.watch(model, optimizer, folder=folder, name=f"{case}-{rank}", policy="heal") as run:
        seen: list[int] = []

        @run.step
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            if case == "runs-out":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            seen.append(len(x))
            return (model(x) - y).square().mean()

        if case == "split":
            run._scope.micro_batches.shrink(4)
        try:
            for _ in range(6):
                losses.append(step(torch.randn(10, 6, generator=generator), torch.randn(10, 1, generator=generator)))
                optimizer.step()
                optimizer.zero_grad()
        except torch.OutOfMemoryError as error:
            outcome = f"{type(error).__name__}: {error}"
        journal = list(run._scope.run.journal)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    recorded = torch.stack(losses) if losses else torch.zeros(0)
    return {"weights": weights, "losses": recorded, "outcome": outcome, "seen": seen, "journal": journal}


def main(folder: Path, cases: list[str]) -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    told = {}
    for case in cases:
        told[case] = train(folder, case)
        torch.save(told, folder / f"rank-{dist.get_rank()}.pt")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
