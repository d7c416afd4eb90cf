"""A training that stands still for a while, and goes on: pauses.py [--steps N] [--every SECONDS] [AT:WHAT:VALUE ...].

WHAT is `step` (step AT takes VALUE seconds), `evaluate` (an evaluation of VALUE seconds after step AT), `debug` (a breakpoint
after it), or, in the loader's worker at batch AT, `disk` (it waits in the kernel for VALUE seconds, as for a network file
system that is away; nothing can end that) and `read` (it reads the file VALUE, which may be a pipe that nobody writes to yet).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

BATCH = 4
CLONE_VM, CLONE_VFORK = 0x100, 0x4000

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--every", type=float, default=0.02)
parser.add_argument("pauses", nargs="*")
given = parser.parse_args()
pauses = {(int(at), what): value for one in given.pauses for at, what, value in (one.split(":", 2),)}
in_worker = any(what in ("disk", "read") for _, what in pauses)


def wait_in_the_kernel(seconds: int) -> None:
    """Whoever starts a process with CLONE_VFORK stands in uninterruptible sleep until that process ends."""
    libc, room = ctypes.CDLL(None), ctypes.create_string_buffer(1 << 16)
    top = ctypes.c_void_p((ctypes.addressof(room) + len(room) - 64) & ~15)
    child = libc.clone(libc.sleep, top, CLONE_VM | CLONE_VFORK | signal.SIGCHLD, ctypes.c_void_p(seconds))
    os.waitpid(child, 0)


class Samples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return BATCH * given.steps

    def __getitem__(self, index: int) -> torch.Tensor:
        batch, number = divmod(index, BATCH)
        if number == 0 and (batch, "disk") in pauses:
            wait_in_the_kernel(int(pauses[batch, "disk"]))
        if number == 0 and (batch, "read") in pauses:
            Path(pauses[batch, "read"]).read_bytes()
        return torch.full((4,), float(index) / len(self))


def main() -> None:
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(Samples(), batch_size=BATCH, num_workers=int(in_worker), prefetch_factor=1 if in_worker else None)
    for step, batch in enumerate(loader):
        loss = model(batch).pow(2).mean()
        time.sleep(float(pauses.get((step, "step"), given.every)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step, "evaluate") in pauses:
            model.eval()
            time.sleep(float(pauses[step, "evaluate"]))
            model.train()
        if (step, "debug") in pauses:
            breakpoint()
        print(f"step {step}", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main()
