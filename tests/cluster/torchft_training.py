"""One replica of a torchft training: NAME STEPS OUT. It prints each committed step and how many replicas took part."""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torchft import Manager, Optimizer, ProcessGroupGloo
from torchft.ddp import DistributedDataParallel

name, steps, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
torch.manual_seed(0)
network = torch.nn.Linear(4, 1)


def load(state: dict) -> None:
    network.load_state_dict(state["model"])
    inner.load_state_dict(state["optimizer"])


manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
    min_replica_size=1,
    load_state_dict=load,
    state_dict=lambda: {"model": network.state_dict(), "optimizer": inner.state_dict()},
    replica_id=name,
    timeout=timedelta(seconds=20),
)
model = DistributedDataParallel(manager, network)
inner = torch.optim.SGD(network.parameters(), lr=0.05)
optimizer = Optimizer(manager, inner)
while manager.current_step() < steps:
    optimizer.zero_grad()
    inputs = torch.randn(16, 4)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    out.write_text(json.dumps({"step": manager.current_step(), "replicas": manager.num_participants()}))
    time.sleep(0.05)
manager.shutdown(wait=False)
