"""What Holdfast costs on a CPU: the same training step with and without it, in two processes, interleaved.

Both processes do a burst of steps in turn, so whatever else the machine is doing hits both alike. Printed as ratios.

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

SITE = Path(__file__).resolve().parent.parent / "src" / "holdfast" / "inside" / "site"
CASES = {  # name: (training, steps in a burst, environment of the watched process, bar on the median)
    "step of about 1 ms": ("small", 100, {}, 1.05),
    "step of about 20 ms": ("medium", 10, {}, 1.02),
    "25 modules, every step sampled": ("deep", 20, {"HOLDFAST_SAMPLING": "modules"}, 1.15),
}


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


def work(training: str, burst: int) -> None:
    """The child: on each line from the parent do a burst of steps and answer with their times."""
    import torch

    torch.set_num_threads(1)
    step = make_step(training)
    for _ in range(200 if training == "small" else 30):
        step()
    clock = time.perf_counter
    print("ready", flush=True)
    for _ in sys.stdin:
        times = []
        for _ in range(burst):
            begun = clock()
            step()
            times.append(clock() - begun)
        print(json.dumps(times), flush=True)
    facts = {"threads": threading.active_count(), "rss": int(Path("/proc/self/statm").read_text().split()[1]) * 4096}
    print(json.dumps(facts), flush=True)


def start(training: str, burst: int, extra: dict[str, str], run: str | None) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
    environment["OMP_NUM_THREADS"] = "1"
    if run is not None:
        environment.update(extra, HOLDFAST_RUN=run, PYTHONPATH=str(SITE))
    command = [sys.executable, __file__, "--child", training, str(burst)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def compare(training: str, burst: int, extra: dict[str, str], rounds: int, pairs: int = 5) -> dict[str, float]:
    """The median over several pairs of processes: where a process's memory lies moves its speed by some per cent."""
    found = [compare_one_pair(training, burst, extra, rounds) for _ in range(pairs)]
    return {key: statistics.median(one[key] for one in found) for key in found[0]}


def compare_one_pair(training: str, burst: int, extra: dict[str, str], rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        from holdfast.signals.run_folder import RunFolder

        run = RunFolder.create(Path(folder), "overhead")
        pair = [start(training, burst, extra, None), start(training, burst, extra, str(run.path))]
        times: list[list[float]] = [[], []]
        for child in pair:
            assert child.stdout is not None and child.stdout.readline().strip() == "ready"
        for number in range(rounds):
            for which in (0, 1) if number % 2 else (1, 0):
                child = pair[which]
                assert child.stdin is not None and child.stdout is not None
                child.stdin.write("go\n")
                child.stdin.flush()
                times[which].append(json.loads(child.stdout.readline()))
        facts = []
        for child in pair:
            out, _ = child.communicate()
            facts.append(json.loads(out))
    return summary(times, facts)


def summary(times, facts) -> dict[str, float]:
    """Ratios from medians of each round's pair: slow drifts of the machine cancel."""
    ratios = [statistics.median(b) / statistics.median(a) for a, b in zip(*times, strict=True)]
    plain, watched = (sorted(t for burst in side for t in burst) for side in times)
    p99 = watched[int(0.99 * len(watched))] / plain[int(0.99 * len(plain))]
    return {
        "plain ms": 1000 * statistics.median(plain),
        "ratio": statistics.median(ratios),
        "p99 ratio": p99,
        "added memory MB": (facts[1]["rss"] - facts[0]["rss"]) / 1e6,
        "added threads": facts[1]["threads"] - facts[0]["threads"],
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--child", nargs=2)
    arguments = parser.parse_args()
    if arguments.child:
        work(arguments.child[0], int(arguments.child[1]))
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
