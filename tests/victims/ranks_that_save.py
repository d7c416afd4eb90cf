"""Ranks that train, save and restore: torchrun --nproc_per_node N ranks_that_save.py KIND FOLDER OUT STEPS [WORDS].

KIND is `fsdp2`, `fsdp1`, `ddp` or `plain` (one process, no group). Restores the newest checkpoint, trains up to STEPS, saves at
each step and writes all weights and optimizer state, put together from all ranks, to OUT. With STEPS 0 it only restores. WORDS:
`no-ema`; `nan`, the last rank corrupts its part of the weights before the last save; `unclosed`, the process group ends right
after the first save.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

import holdfast

kind, folder, out, steps = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
out.mkdir(parents=True, exist_ok=True)
if kind != "plain":
    dist.init_process_group("gloo")
rank = dist.get_rank() if kind != "plain" else 0
torch.manual_seed(0)
model: nn.Module = nn.Sequential(nn.Linear(7, 11), nn.Dropout(0.3), nn.BatchNorm1d(11), nn.Linear(11, 3))
if kind == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
elif kind == "fsdp2":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
elif kind == "fsdp1":
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)


class Average:
    """A hand-written average of the weights."""

    def __init__(self) -> None:
        self.shadow = {name.removeprefix("module."): p.detach().clone() for name, p in model.named_parameters()}

    def update(self) -> None:
        for name, p in model.named_parameters():
            self.shadow[name.removeprefix("module.")].lerp_(p.detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        return self.shadow

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            self.shadow[name].copy_(value)


ema = Average()
torch.manual_seed(10 + rank)
given: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
if kind != "fsdp1" and "no-ema" not in sys.argv:
    given["ema"] = ema
store = holdfast.CheckpointStore(folder, keep_last=2)
restored = store.restore(**given)
first = restored.step if restored is not None else 0
losses = []
for step in range(first, steps):
    optimizer.zero_grad()
    loss = cross_entropy(model(torch.randn(8, 7)), torch.randint(0, 3, (8,)))
    loss.backward()
    optimizer.step()
    scheduler.step()
    ema.update()
    losses.append(loss.item())
    if "nan" in sys.argv and step + 1 == steps and rank == dist.get_world_size() - 1:
        model[0].weight.to_local().data[0, 0] = float("nan")
    store.save(step + 1, **given)
    (out / f"{rank}.saving").write_text(str(os.getpid()))
    if "unclosed" in sys.argv:
        dist.destroy_process_group()
        store.close()
        torch.save({}, out / f"{rank}.pt")
        sys.exit()
store.close()


def whole(value: Any) -> Any:
    """A tensor put together from all ranks."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def everything() -> dict[str, Any]:
    if kind == "fsdp1":
        from torch.distributed.checkpoint import state_dict as api

        options = api.StateDictOptions(full_state_dict=True)
        state = api.get_optimizer_state_dict(model, optimizer, options=options)
        return {"model": api.get_model_state_dict(model, options=options), "optimizer": state["state"]}
    names = {id(p): name.removeprefix("module.") for name, p in model.named_parameters()}
    weights = {name.removeprefix("module."): whole(value).clone() for name, value in model.state_dict().items()}
    state = {names[id(p)]: {k: whole(v) for k, v in held.items()} for p, held in optimizer.state.items()}
    return {"model": weights, "optimizer": state, "average": {name: whole(value) for name, value in ema.shadow.items()}}


told = everything()
told.update(lr=scheduler.get_last_lr(), first=first, losses=losses, random=torch.rand(3), troubles=store.troubles)
torch.save(told, out / f"{rank}.pt")
if kind != "plain":
    dist.barrier()
    dist.destroy_process_group()
