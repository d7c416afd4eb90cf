"""One rank of a small all-reduce: joins, adds up, checks the sum."""

from __future__ import annotations

import sys
import time
from datetime import timedelta

from holdfast.environment.child_output import tell


def main(rank: int, backend: str, store: str, ranks: int, seconds: float) -> None:
    """Tell each stage; the process group has the parent's time limit too, so that its own error is heard if it has one."""
    import torch
    import torch.distributed as dist

    tell("torch imported", imported=True)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    limit = timedelta(seconds=max(5.0, seconds - 5.0))
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=limit)
    tell("process group made", joined=True)
    device = f"cuda:{rank}" if backend == "nccl" else "cpu"
    values = torch.full((1 << 18,), float(rank + 1), device=device)
    begun = time.perf_counter()
    dist.all_reduce(values)
    total = values[-1].item()
    tell("all-reduce", seconds=time.perf_counter() - begun)
    if total != sum(range(1, ranks + 1)):
        raise SystemExit(f"the sum of 1 to {ranks} came out as {total}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
