"""How much faster a restarted script that cannot resume gets through the steps that were done: at least 20 times.

    python benchmarks/fast_forward.py

A convolutional network on 32 x 32 images, a shuffled DataLoader without workers. The first attempt is killed after its last epoch
but one; the second one is fast-forwarded. Both are timed inside the script, in processes of their own, one after the other.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import machine, today

BAR = 20.0
SCRIPT = """
import os, signal, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0); torch.set_num_threads(1)
def block(i, o): return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU())
body = block(3, 32), block(32, 64), nn.MaxPool2d(2), block(64, 64), nn.MaxPool2d(2)
model = nn.Sequential(*body, nn.Flatten(), nn.Linear(4096, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
data = TensorDataset(torch.randn(640, 3, 32, 32), torch.randint(0, 10, (640,)))
step, times = 0, []
for epoch in range(12):
    for x, y in DataLoader(data, batch_size=32, shuffle=True):
        times.append(time.perf_counter())
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        step += 1
        if step == 200 and os.environ.get("HOLDFAST_ATTEMPT", "1") == "1":
            print(f"trained {100 * (times[150] - times[50]) / 100:.3f}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
print(f"skipped {100 * (times[90] - times[20]) / 70:.3f}", flush=True)
"""


def main() -> int:
    """Measure, print, and say whether the bar is met."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(SCRIPT)
        command = [sys.executable, "-m", "holdfast", "run", "--policy", "heal", "--name", "a", sys.executable, "train.py"]
        environment = {**os.environ, "HOLDFAST_SAVE_EVERY": "0.5"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False)
    times = {name: float(value) for name, value in re.findall(r"(trained|skipped) ([0-9.]+)", done.stdout)}
    reached = re.search(r"fast-forwarding to step ([0-9,]+)", done.stderr)
    if done.returncode or reached is None or len(times) < 2 or int(reached[1].replace(",", "")) < 100:
        print(done.stdout, done.stderr, "the run was not fast-forwarded far enough to measure it", sep="\n")
        return 1
    ratio = times["trained"] / times["skipped"]
    print(f"{machine(1)}, {today()}")
    trained, skipped = 10 * times["trained"], 10 * times["skipped"]  # milliseconds
    print(f"a step: {trained:.1f} ms; fast-forwarded: {skipped:.2f} ms; {ratio:.0f} times faster (bar {BAR:.0f})")
    return 0 if ratio >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
