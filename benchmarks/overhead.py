"""What Holdfast costs on a CPU: the same training step with and without it, in turns, in one process.

Two processes that do exactly the same differ by some per cent, as their memory lies differently; so Holdfast is armed and
taken out again in bursts of steps in one process, in several processes one after the other. Printed as ratios.

The C library keeps the memory of freed tensors here (`MALLOC_…`). By default it may give it back at every step and take it again:
up to a thousand page faults, 3 ms of a step of 14 ms, in some steps and not in others, with Holdfast and without.

    python benchmarks/overhead.py [--rounds 16]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

CASES = {  # name: (training, steps in a burst, environment of the watched process, bar on the median)
    "step of about 1 ms": ("small", 100, {}, 1.03),
    "step of about 20 ms": ("medium", 10, {}, 1.01),
    "25 modules, every step sampled": ("deep", 20, {"HOLDFAST_SAMPLING": "modules"}, 1.15),
}

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MALLOC_TRIM_THRESHOLD_": str(4 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}


def make_step(training: str):
    """A training step of the named size; returns a function without arguments."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if training == "small":
        model = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10))
        x, y = torch.randn(128, 32), torch.randint(0, 10, (128,))
    elif training == "medium":
        conv = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4)]
        model = nn.Sequential(*conv, nn.Flatten(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10))
        x, y = torch.randn(16, 1, 28, 28), torch.randint(0, 10, (16,))
    else:
        model = nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(256, 256), nn.ReLU())], nn.Linear(256, 10))
        x, y = torch.randn(128, 256), torch.randint(0, 10, (128,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def work(training: str, burst: int, rounds: int) -> None:
    """The child: in each round a burst of steps without Holdfast and one with it, in turns, and the times of both."""
    import torch

    from holdfast.inside.arm import arm_from_environment, armed
    from holdfast.signals.run_folder import RunFolder

    torch.set_num_threads(1)
    step = make_step(training)
    timed(step, 200 if training == "small" else 30)
    before = facts()
    times: list[list[list[float]]] = [[], []]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOLDFAST_RUN"] = str(RunFolder.create(Path(folder), "overhead").path)
        for number in range(rounds):
            for watched in (0, 1) if number % 2 else (1, 0):
                if watched:
                    arm_from_environment()
                timed(step, 20)  # the first steps look for models, compile, sample
                times[watched].append(timed(step, burst))
                if watched:
                    after = facts()
                    armed().close_all()
    print(json.dumps({"times": times, "before": before, "after": after}))


def timed(step, count: int) -> list[float]:
    clock, times = time.perf_counter, []
    for _ in range(count):
        begun = clock()
        step()
        times.append(clock() - begun)
    return times


def facts() -> dict[str, int]:
    return {"threads": threading.active_count(), "rss": int(Path("/proc/self/statm").read_text().split()[1]) * 4096}


def compare(training: str, burst: int, extra: dict[str, str], rounds: int, processes: int = 5) -> dict[str, float]:
    """The median over several processes: where a process's memory lies moves its speed by some per cent."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")} | ENVIRONMENT | extra
    command = [sys.executable, __file__, "--child", training, str(burst), "--rounds", str(rounds)]
    found = []
    for _ in range(processes):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.append(summary(**json.loads(done.stdout)))
    return {key: statistics.median(one[key] for one in found) for key in found[0]}


def summary(times, before, after) -> dict[str, float]:
    """Ratios from medians of each round: slow drifts of the machine cancel."""
    ratios = [statistics.median(b) / statistics.median(a) for a, b in zip(*times, strict=True)]
    plain, watched = (sorted(t for burst in side for t in burst) for side in times)
    p99 = watched[int(0.99 * len(watched))] / plain[int(0.99 * len(plain))]
    return {
        "plain ms": 1000 * statistics.median(plain),
        "ratio": statistics.median(ratios),
        "p99 ratio": p99,
        "added memory MB": (after["rss"] - before["rss"]) / 1e6,
        "added threads": after["threads"] - before["threads"],
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--child", nargs=2)
    arguments = parser.parse_args()
    if arguments.child:
        work(arguments.child[0], int(arguments.child[1]), arguments.rounds)
        return 0
    import torch

    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}")
    missed = 0
    for name, (training, burst, extra, bar) in CASES.items():
        found = compare(training, burst, extra, arguments.rounds)
        verdict = "ok" if found["ratio"] <= bar else "MISSED"
        missed += verdict != "ok"
        print(f"{name:32s} {found['plain ms']:7.2f} ms plain  {found['ratio']:.3f}x (bar {bar:.2f}x, {verdict})", end="")
        print(f"  p99 {found['p99 ratio']:.2f}x  +{found['added memory MB']:.0f} MB  +{found['added threads']:.0f} thread(s)")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
