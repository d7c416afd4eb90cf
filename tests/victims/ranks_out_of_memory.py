"""Two ranks under DDP, of which one runs out of memory: torchrun --nproc_per_node 2 ranks_out_of_memory.py FOLDER CASE...

A case names where rank 1 runs out: nowhere, before (the model), forward, loss, backward, never-fits; with `-accumulate` each
update takes two calls, the first in `no_sync`; with `-in-place` gradients are zeroed, not removed, and are views of buckets;
with `-norm` there are batch normalisations, whose buffers DDP sends round; with `-later` the first batch is a small one.
"""

from __future__ import annotations

import contextlib
import datetime
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import holdfast
from holdfast.errors import HoldfastError

FITS = 4


def run_out(where: str, now: str, samples: int) -> None:
    if where == "never-fits" or (where == now and samples > FITS):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


class RunsOut(torch.autograd.Function):
    """Does nothing, except that memory may run out."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, where: str) -> torch.Tensor:
        ctx.where = where
        run_out(where, "forward", len(x))
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        run_out(ctx.where, "backward", len(gradient))
        return gradient, None


class Model(nn.Module):
    """Layers in several buckets, and a place in the middle where memory runs out."""

    def __init__(self, where: str, *, norm: bool) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 64), nn.Linear(64, 64), nn.Linear(64, 1)
        self.norm = nn.BatchNorm1d(64) if norm else nn.Identity()
        self.where = where

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = RunsOut.apply(self.norm(self.first(x)).tanh(), self.where)
        return self.last(self.second(x).tanh())


def train(folder: Path, case: str) -> dict[str, Any]:
    rank = dist.get_rank()
    where, *ways = case.split("-") if not case.startswith("never-fits") else ("never-fits",)
    if rank == 0:
        where = ""
    torch.manual_seed(0)
    in_place = "place" in ways
    inner = Model(where, norm="norm" in ways)
    model = DistributedDataParallel(inner, bucket_cap_mb=0.005, gradient_as_bucket_view=in_place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    losses, outcome = [], "trained"
    with holdfast.watch(model, optimizer, folder=folder, name=f"{case}-{rank}", policy="heal") as run:
        seen: list[int] = []

        @run.step
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            run_out(where, "before", len(x))
            loss = (model(x) - y).square().mean()
            run_out(where, "loss", len(x))
            seen.append(len(x))
            return loss

        try:
            for number in range(6):
                samples = FITS if "later" in ways and number == 0 else 10
                for last in (False, True) if "accumulate" in ways else (True,):
                    x, y = torch.randn(samples, 6, generator=generator), torch.randn(samples, 1, generator=generator)
                    with contextlib.nullcontext() if last else model.no_sync():
                        losses.append(step(x, y))
                optimizer.step()
                optimizer.zero_grad(set_to_none=not in_place)
        except HoldfastError as error:
            outcome = f"{type(error).__name__}: {error.problem}"
        parts = run._scope.micro_batches.parts
        journal = list(run._scope.run.journal)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    recorded = torch.stack(losses) if losses else torch.zeros(0)
    return {"weights": weights, "losses": recorded, "outcome": outcome, "seen": seen, "parts": parts, "journal": journal}


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
