"""A small training that meets one fault, the first time it gets there: survive_training.py KIND FAULT AT.

KIND: `resumes` (saves and loads by itself), `plain` (knows nothing of it), `watched` (holdfast.watch, run.save, run.restore).
The file `met` in the working folder says that the fault was met.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS, BATCH, SAVE_EVERY = 150, 16, 25
parser = argparse.ArgumentParser()
parser.add_argument("kind", choices=("resumes", "plain", "watched"))
parser.add_argument("fault")
parser.add_argument("at", type=int)
parser.add_argument("--resume")
given = parser.parse_args()


def meets_it() -> bool:
    """Whether this is the first time; several workers may come here at once."""
    try:
        os.close(os.open("met", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class Numbers(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Numbers and their sum, the same for an index each time; a worker may hang or die over one of them."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == given.at * BATCH + 1 and given.fault.startswith("worker") and meets_it():
            if given.fault == "worker-hang":
                time.sleep(1000)
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.randn(6, generator=torch.Generator().manual_seed(index))
        return x, torch.tanh(x.sum(0, keepdim=True))


def meet(step: int) -> None:
    """The fault of the main process."""
    if step != given.at or given.fault.startswith("worker") or given.fault == "none" or not meets_it():
        return
    if given.fault == "hang":
        time.sleep(1000)
    elif given.fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif given.fault == "stop":
        subprocess.Popen(["sh", "-c", f"sleep 3; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    elif given.fault == "exception":
        raise ValueError("a sample has no label")
    elif given.fault == "disk-full":
        torch.save({"model": model.state_dict()}, "/dev/full")


torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
workers = 2 if given.fault.startswith("worker") else 0
run: Any = None
state: dict[str, Any] = {}
first = 0
if given.kind == "watched":
    import holdfast

    run = holdfast.watch(model, optimizer)
    restored = run.restore()
    first = restored.step if restored is not None else 0
    data: Any = Numbers()
elif given.kind == "resumes" and given.resume:
    state = torch.load(given.resume)
    for name, part in (("model", model), ("optimizer", optimizer), ("schedule", schedule)):
        part.load_state_dict(state[name])
    first = state["step"]
data = Numbers() if run is not None else torch.utils.data.Subset(Numbers(), range(first * BATCH, STEPS * BATCH))
loader = DataLoader(data, batch_size=BATCH, num_workers=workers)
batches = run.batches(loader) if run is not None else iter(loader)
if state:
    torch.set_rng_state(state["random"])  # the loader has drawn its seed from it
loss, step = torch.zeros(()), first - 1
for step, (x, y) in enumerate(batches, first):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if (step + 1) % SAVE_EVERY == 0:
        if run is not None:
            run.save(wait=True)
        elif given.kind == "resumes":
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
            torch.save({**states, "random": torch.get_rng_state(), "step": step + 1}, "last.tmp")
            Path("last.tmp").replace("last.pt")
    meet(step)
    time.sleep(0.01)
model.eval()
with torch.no_grad():
    x = torch.randn(512, 6, generator=torch.Generator().manual_seed(10**9))
    metric = nn.functional.mse_loss(model(x), torch.tanh(x.sum(1, keepdim=True))).item()
print(f"end {step + 1} {metric:.9f}", flush=True)
