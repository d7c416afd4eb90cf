"""A training that stands still for a while, and goes on: pauses.py [--steps N] [--every SECONDS] [AT:WHAT:VALUE ...].

Every tenth step is printed.

WHAT is `step` (step AT takes VALUE seconds), `evaluate` (an evaluation of VALUE seconds after step AT), `save` (a save of VALUE
seconds after it), `debug` (a breakpoint after it), or, in the loader's worker at batch AT, `disk`: it waits in the kernel for
VALUE seconds, as for a network file system that is away; nothing can end that.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import time

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
in_worker = any(what == "disk" for _, what in pauses)


def wait_in_the_kernel(seconds: int) -> None:
    """Whoever starts a process with CLONE_VFORK stands in uninterruptible sleep until that process ends."""
    libc, room = ctypes.CDLL(None), ctypes.create_string_buffer(1 << 16)
    top = ctypes.c_void_p((ctypes.addressof(room) + len(room) - 64) & ~15)
    child = libc.clone(libc.sleep, top, CLONE_VM | CLONE_VFORK | signal.SIGCHLD, ctypes.c_void_p(seconds))
    os.waitpid(child, 0)


class SlowToSave:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __reduce__(self) -> tuple[type[str], tuple[()]]:
        time.sleep(self.seconds)
        return str, ()


class Samples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return BATCH * given.steps

    def __getitem__(self, index: int) -> torch.Tensor:
        batch, number = divmod(index, BATCH)
        if number == 0 and (batch, "disk") in pauses:
            wait_in_the_kernel(int(pauses[batch, "disk"]))
        return torch.full((4,), index % 7 / 7)


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
        if (step, "save") in pauses:
            torch.save({"model": model.state_dict(), "slow": SlowToSave(float(pauses[step, "save"]))}, "slow.pt")
        if (step, "debug") in pauses:
            breakpoint()
        if step % 10 == 0:
            print(f"step {step}", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main()
