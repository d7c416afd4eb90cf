"""What a snapshot and a roll-back cost: a model of 100 M parameters with AdamW, on the host and, where there is one, on a GPU.

`take` is what the training thread pays for a snapshot, `restore` what it pays for a roll-back. On a GPU the copies run in
the training's own stream; how long they hold it is printed too.

    python benchmarks/rollback.py [--parameters 100] [--device cpu|cuda]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from holdfast.state.background import BackgroundThread
from holdfast.state.host_copy import available_memory
from holdfast.state.snapshots import Snapshots
from holdfast.state.training_state import TrainingState

BAR = 1.0  # seconds of host time for a roll-back of 100 M parameters
ROUNDS = 5


def make_training(millions: float, device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Layers shaped like a transformer's, with AdamW after one step."""
    width, layers = 1024, max(1, round(millions * 1e6 / (8 * 1024 * 1024 + 7 * 1024)))
    blocks = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)) for _ in range(layers)]
    model = nn.Sequential(*blocks).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    return model, optimizer


def measure(millions: float, device: str) -> bool:
    model, optimizer = make_training(millions, device)
    state = TrainingState.discover([model], [optimizer])
    size = state.read().size
    helper = BackgroundThread("snapshots", on_error=lambda what, error: print(f"{what}: {error}"))
    snapshots = Snapshots(lambda: state, memory_limit=4 * size, keep=2, run_later=helper.submit)
    count = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    print(f"{device}: {count:.0f} M parameters, AdamW, {size / 1e9:.2f} GB of state")
    takes, restores = [], []
    for step in range(1, 2 * ROUNDS + 1):
        while not snapshots.due(step):
            time.sleep(0.01)
        snapshots.take(step)
        takes.append(snapshots.take_seconds)
        optimizer.step()
        while snapshots.at_or_before(step) is None:  # in a training it is looked at long before it is needed
            time.sleep(0.01)
        expected = next(iter(model.parameters())).detach().clone()
        begun = time.perf_counter()
        snapshots.restore(step)
        restores.append(time.perf_counter() - begun)
        if device == "cuda":
            torch.cuda.synchronize()
        assert not torch.equal(next(iter(model.parameters())), expected), "nothing was restored"
        snapshots._next = step
    print(f"  take     {1000 * statistics.median(takes[1:]):8.1f} ms of host time (the first {1000 * takes[0]:.1f})")
    if device == "cuda":
        print(f"  copies   {1000 * snapshots.copy_seconds:8.1f} ms in the training's stream, in which the host does not wait")
    restore = statistics.median(restores)
    scaled = restore * 100 / count
    print(f"  restore  {1000 * restore:8.1f} ms of host time (for 100 M: {scaled:.2f} s, bar {BAR:.0f} s)")
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        snapshots.save(Path(folder))
        called = time.perf_counter() - begun
        helper.close(timeout=300.0)
        print(f"  save     {1000 * called:8.1f} ms of host time; {time.perf_counter() - begun:.1f} s in the helper thread")
    snapshots.forget()
    return scaled <= BAR


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parameters", type=float, default=100.0, help="millions")
    parser.add_argument("--device", choices=["cpu", "cuda"])
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, {available_memory() / 1e9:.1f} GB free")
    devices = [arguments.device] if arguments.device else ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    good = True
    for device in devices:
        millions = arguments.parameters
        needed = millions * 1e6 * 4 * (4 + 2 * 3)  # weights, gradients, two moments, and two snapshots
        if needed > 0.8 * available_memory():
            millions *= 0.8 * available_memory() / needed
            print(f"too little memory for {arguments.parameters:.0f} M parameters: measured with {millions:.0f} M")
        good &= measure(millions, device)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
