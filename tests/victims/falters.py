"""A small training that meets a fault once, or none: falters.py FAULT AT [--then FAULT AT] [--resume FILE] [--steps N] [--own] …

With --own it saves `last.pt` every 20 steps (written beside and renamed) and goes on from --resume; without, it knows nothing of
resuming. A fault comes at step AT, in one attempt only: the file `met-FAULT` says that it has been met. With --until it trains
until that file is there.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("fault")
parser.add_argument("at", type=int)
parser.add_argument("--then", nargs=2, default=("none", "0"), metavar=("FAULT", "AT"), help="a second fault")
parser.add_argument("--until", type=Path, help="a file: train until it is there")
parser.add_argument("--resume")
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--own", action="store_true")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--pause", type=float, default=0.01)
parser.add_argument("--always", action="store_true", help="the fault comes in every attempt")
given = parser.parse_args()
faults = {given.fault: given.at, given.then[0]: int(given.then[1])}


def first_time(fault: str) -> bool:
    met = Path(f"met-{fault}")
    if met.exists() and not given.always:
        return False
    met.touch()
    return True


class Numbers(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The same numbers for every index; one of them may not come, in a worker."""

    def __len__(self) -> int:
        return 16 * given.steps

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == 16 * faults.get("worker-hang", -1) + 3 and first_time("worker-hang"):
            time.sleep(1000)
        if index == 16 * faults.get("worker-kill", -1) + 3 and first_time("worker-kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.randn(4, generator=torch.Generator().manual_seed(index))
        return x, x.sum(0, keepdim=True)


def falter(step: int, fault: str, at: int) -> None:
    if step != at or fault.startswith("worker") or fault == "none" or not first_time(fault):
        return
    print(f"fault: {fault}", flush=True)
    if fault == "hang":
        time.sleep(1000)
    elif fault == "hang-deaf":  # does not hear SIGTERM, and neither does its child in a session of its own
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
        Path("child").write_text(str(subprocess.Popen([sys.executable, "-c", child], start_new_session=True).pid))
        time.sleep(1000)
    elif fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "segv":
        ctypes.string_at(0)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "disk":
        raise OSError(28, "No space left on device", "last.pt")
    elif fault == "memory":
        Path("/proc/self/oom_score_adj").write_text("1000")  # the kernel takes this process, and not the supervisor beside it
        kept = []
        while True:
            kept.append(bytearray(8 << 20))
            time.sleep(0.005)
    else:
        raise ValueError("sample 4711 has no label")


torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.steps)
first = 0
if given.resume:
    state = torch.load(given.resume)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    first = state["step"]
data = torch.utils.data.Subset(Numbers(), range(16 * first, 16 * given.steps))
loader = DataLoader(data, batch_size=16, num_workers=given.workers, persistent_workers=given.workers > 0)
loss, batches = torch.zeros(()), iter(loader)
if given.resume:
    torch.set_rng_state(state["random"])  # the loader has drawn its seed from it
for step, (x, y) in enumerate(batches, first):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if given.own and (step + 1) % 20 == 0:
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
        torch.save({**states, "random": torch.get_rng_state(), "step": step + 1}, "last.tmp")
        Path("last.tmp").replace("last.pt")
    for fault, at in faults.items():
        falter(step, fault, at)
    if given.until is not None and given.until.exists():
        break
    time.sleep(given.pause)
weights = sum(float(p.detach().double().abs().sum()) for p in model.parameters())
print(f"end: step {step + 1} loss {loss.item():.9f} weights {weights:.12f}", flush=True)
