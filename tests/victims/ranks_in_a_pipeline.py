"""Two stages of one model, of which only the first meets a bad gradient: ranks_in_a_pipeline.py BAD_STEP OUT, under torchrun.

Writes at which steps the weights of each stage have not moved. With one more word Holdfast's guard of the second stage fails at
the second step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.functional import cross_entropy

bad, out = int(sys.argv[1]), Path(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
layers = [nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 4)]
model = layers[rank]
stage = PipelineStage(model, rank, 2, torch.device("cpu"))
schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=cross_entropy)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(1)
x, y = torch.randn(8, 16, 8), torch.randint(0, 4, (8, 16))
unmoved = []
for step in range(8):
    optimizer.zero_grad()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    if rank == 0:
        schedule.step(x[step])
    else:
        schedule.step(target=y[step])
    if rank == 0 and step == bad:
        next(model.parameters()).grad[0, 0] = float("nan")  # type: ignore[index]
    if len(sys.argv) > 3 and rank == 1 and step == 1:
        from holdfast.inside.arm import armed

        armed().runtime.trainings[0].guard.averages = None  # type: ignore[union-attr, assignment]
    optimizer.step()
    if all(a.equal(b) for a, b in zip(before, model.parameters(), strict=True)):
        unmoved.append(step)
(out / f"{rank}.json").write_text(json.dumps(unmoved))
dist.barrier()
dist.destroy_process_group()
