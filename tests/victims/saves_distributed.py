"""Saves with torch.distributed.checkpoint: alone, or as one of several ranks, sharded as FSDP does."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemWriter, SerializationFormat


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(6, 5)).sum().backward()
    optimizer.step()
    return model, optimizer


def alone(out: Path) -> None:
    model, optimizer = trained()
    state = {"model": model.state_dict(), "optim": optimizer.state_dict(), "step": 7, "settings": {"lr": 0.1, "name": "a"}}
    dcp.save(state, checkpoint_id=out / "plain")
    dcp.save(state, storage_writer=FileSystemWriter(out / "a-file-each", single_file_per_rank=False))
    dcp.save(state, storage_writer=FileSystemWriter(out / "threads", thread_count=3))
    as_safetensors = FileSystemWriter(out / "safetensors", serialization_format=SerializationFormat.SAFETENSORS)
    dcp.save({"model": model.state_dict(), "step": 7}, storage_writer=as_safetensors)
    torch.save(state, out / "the-same.pt")


def sharded(out: Path) -> None:
    """Each rank holds a part of every parameter."""
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(6, 5)).sum().backward()
    optimizer.step()
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": state, "step": 7}, checkpoint_id=out / "sharded")
    if "use_collectives" in inspect.signature(dcp.save).parameters:
        dcp.save({"model": weights, "step": 7}, checkpoint_id=out / "own-indexes", use_collectives=False)
    dist.destroy_process_group()


if __name__ == "__main__":
    (sharded if "RANK" in os.environ else alone)(Path(sys.argv[1]))
