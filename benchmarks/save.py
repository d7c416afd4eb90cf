"""How long a save holds the training loop: `torch.save` of the same state against `CheckpointStore.save`.

Each is called several times in turn, in the same folder; printed is the median after the first. On a GPU the time until the
device can go on counts too, not only until the call returns. The bar: at most a tenth.

    PYTHONPATH=src python benchmarks/save.py [--parameters 100] [--device cpu] [--folder DIR] [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from holdfast.state.host_copy import available_memory
from holdfast.state.store import CheckpointStore

BAR = 0.1


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


class Pauses:
    """A thread that runs Python beside the saving, and sees how long it is kept from it."""

    def __init__(self) -> None:
        self.longest, self._over = 0.0, False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Pauses:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._thread.join()

    def _run(self) -> None:
        last = time.perf_counter()
        while not self._over:
            time.sleep(0.001)
            now = time.perf_counter()
            self.longest, last = max(self.longest, now - last), now


def held(call: Callable[[], object], device: str) -> tuple[float, float]:
    """Seconds until a call returns, and until the device can go on."""
    if device == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    call()
    returned = time.perf_counter() - begun
    if device == "cuda":
        torch.cuda.synchronize()
    return returned, time.perf_counter() - begun


def measure(millions: float, device: str, folder: Path, rounds: int) -> bool:
    model, optimizer = make_training(millions, device)
    count = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    tensors = [*model.parameters(), *(value for entry in optimizer.state.values() for value in entry.values())]
    print(f"{device}: {count:.0f} M parameters, AdamW, {sum(t.nbytes for t in tensors) / 1e9:.2f} GB of state, in {folder}")
    store = CheckpointStore(folder / "store", keep_last=1)
    plain: list[float] = []
    calls: list[float] = []
    until: list[float] = []
    behind: list[float] = []
    pauses = 0.0
    for step in range(1, rounds + 2):
        file = folder / f"{step}.pt"
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        plain.append(held(lambda: torch.save(state, file), device)[1])  # noqa: B023 - called at once
        file.unlink()
        begun = time.perf_counter()
        call, on_device = held(lambda: store.save(step, model=model, optimizer=optimizer), device)  # noqa: B023
        calls.append(call)
        until.append(on_device)
        with Pauses() as beside:
            store.wait()
        behind.append(time.perf_counter() - begun)
        pauses = max(pauses, beside.longest)
    assert len(store.list()) == 1 and not store.troubles, store.troubles
    store.close()
    one, ours = statistics.median(plain[1:]), statistics.median(until[1:])
    print(f"  torch.save   {1000 * one:8.1f} ms in the loop (the first {1000 * plain[0]:.1f})")
    print(f"  store.save   {1000 * ours:8.1f} ms in the loop (the first, which makes the memory, {1000 * until[0]:.1f})")
    if device == "cuda":
        print(
            f"               {1000 * statistics.median(calls[1:]):8.1f} ms of it until the call returns, the rest on the device"
        )
    print(f"               {1000 * statistics.median(behind[1:]):8.1f} ms until it is on disk and was read back, behind the loop")
    print(f"               {1000 * pauses:8.1f} ms is the longest that Python beside it had to wait meanwhile")
    print(f"  {ours / one:.3f} of torch.save, bar {BAR}: {'met' if ours <= BAR * one else 'MISSED'}")
    return ours <= BAR * one


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parameters", type=float, default=100.0, help="millions")
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--folder", type=Path, help="where to save; a temporary folder if none is named")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    warnings.simplefilter("error")
    print(f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, {available_memory() / 1e9:.1f} GB free")
    devices = [arguments.device] if arguments.device else ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    good = True
    for device in devices:
        millions = arguments.parameters
        with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
            needed = millions * 1e6 * 4 * (4 + 3)  # weights, gradients, two moments, and the copy
            room = min(0.8 * available_memory() / needed, 0.5 * shutil.disk_usage(name).free / (millions * 1e6 * 4 * 3 * 3))
            if room < 1.0:
                millions *= room
                print(f"too little room for {arguments.parameters:.0f} M parameters: measured with {millions:.0f} M")
            good &= measure(millions, device, Path(name), arguments.rounds)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
