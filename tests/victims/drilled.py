"""A small training with a drill in it and no Holdfast around it: drilled.py WORKERS [URL]. What hangs ends with SIGALRM.

Prints what came of it as JSON: the time between updates, who read each batch and when, and what else a fault may touch.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sqlite3
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from holdfast.drills.injection.injector import begin

STEPS = 12
begin()
LIMIT = int(os.environ.get("LIMIT", "20"))  # seconds of a step; the start has longer, as other work may slow it down
signal.alarm(60)


class Samples(Dataset[tuple[torch.Tensor, float, int]]):
    """Says with each sample who read it, and when."""

    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, float, int]:
        worker = get_worker_info()
        return torch.full((3,), float(index % 5)), time.monotonic(), worker.id if worker is not None else -1


def post(address: str) -> str:
    try:
        with urllib.request.urlopen(address, data=b"{}", timeout=5) as answer:
            return str(answer.status)
    except OSError as error:
        return type(error).__name__


def write(database: sqlite3.Connection) -> str:
    try:
        with database:
            database.execute("insert into metrics values (1)")
    except sqlite3.OperationalError as error:
        return str(error)
    return "written"


def save(state: dict[str, Any], path: Path) -> None:
    if os.environ.get("SAVES") == "repaired":
        state["model"] = {name: values.nan_to_num() for name, values in state["model"].items()}
    if os.environ.get("SAVES") == "through memory":
        torch.save(state, memory := io.BytesIO())
        path.write_bytes(memory.getvalue())
    else:
        torch.save(state, path)


def all_reduce(*_: Any) -> None:
    told["reduced"] += 1


torch.set_num_threads(1)
torch.manual_seed(0)
torch.distributed.all_reduce = all_reduce  # type: ignore[assignment]
told: dict[str, Any] = {"updates": [], "read": [], "saved": [], "posted": [], "written": [], "reduced": 0}
database = sqlite3.connect("metrics.db", timeout=0.1)
database.execute("create table metrics (value)")
database.commit()
model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, (x, read, worker) in enumerate(DataLoader(Samples(), batch_size=4, num_workers=int(sys.argv[1]))):
    signal.alarm(LIMIT)
    told["read"].append((int(worker[0]), float(read[0])))
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.distributed.all_reduce(loss)
    optimizer.step()
    told["updates"].append(time.monotonic())
    told["written"].append(write(database))
    if len(sys.argv) > 2:
        told["posted"].append(post(sys.argv[2]))
    if step % 2:
        save({"model": model.state_dict(), "step": step}, Path(f"step-{step}.pt"))
        told["saved"].append(f"step-{step}.pt")
told["size"] = [float(parameter.norm()) for parameter in model.parameters()]
print(json.dumps(told), flush=True)
