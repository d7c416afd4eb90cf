"""What Holdfast costs at the start: `import holdfast` beside `import torch`, and a short script under `holdfast run`.

python benchmarks/import_time.py [--rounds 5]

The first is a fraction of `import torch`, with and without `holdfast.watch`. The second is CPU time (user and system, of all
processes) of a script that imports torch and makes 20 steps, bare and watched. Other work on the machine lengthens CPU times by
more than Holdfast does, so each watched run is compared with the bare one of its round, and the median of the rounds counts; the
range shown holds half of them. Bytecode is there in both, as after an installation.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from machine import machine

BAR, BAR_SECONDS = 0.10, 0.5
MEASURE = """
import gc, json, time
gc.disable()  # a collection of all that torch made takes as long as half of it, and falls anywhere
times = [time.perf_counter()]
import torch; times.append(time.perf_counter())
import holdfast; times.append(time.perf_counter())
holdfast.watch; times.append(time.perf_counter())
print(json.dumps([(end - times[1]) / (times[1] - times[0]) for end in times[2:]]))
"""
SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(10, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    loss = model(torch.randn(8, 10)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
POLICIES = ("observe", "guard", "heal")  # the bar is for the first


def fractions_of_torch() -> list[float]:
    """How long Holdfast takes, as fractions of the `import torch` before it in the same process."""
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, timeout=120, check=True)
    return [float(fraction) for fraction in json.loads(done.stdout)]


def cpu_seconds(command: Sequence[str], folder: Path) -> float:
    """The CPU time of a command with everything that it starts and waits for."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTHON"))}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        command, cwd=folder, env={**kept, "XDG_RUNTIME_DIR": str(folder)}, capture_output=True, timeout=300, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def seconds_of_a_short_script(rounds: int) -> list[dict[str, float]]:
    """The CPU time of the script by itself (`bare`) and under each policy, round by round, there and back."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "short.py").write_text(SCRIPT)
        bare = [sys.executable, "short.py"]
        holdfast = [sys.executable, "-m", "holdfast", "run", "--policy"]
        commands = {"bare": bare, **{policy: [*holdfast, policy, "--", *bare] for policy in POLICIES}}
        for command in commands.values():
            cpu_seconds(command, folder)  # fills the page cache, and writes the bytecode
        turns = [list(commands), list(commands)[::-1]]
        return [{name: cpu_seconds(commands[name], folder) for name in turns[number % 2]} for number in range(rounds)]


def main() -> int:
    """Measure, and fail where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    fractions_of_torch()  # fills the page cache
    package, watch = (statistics.median(each) for each in zip(*(fractions_of_torch() for _ in range(rounds)), strict=True))
    print(machine(1))
    print(f"import holdfast: {package:.1%} of import torch; holdfast.watch: {watch:.1%}; bar {BAR:.0%}")
    seconds = seconds_of_a_short_script(rounds)
    print(f"a script of 20 steps: {statistics.median(one['bare'] for one in seconds):.2f} s of CPU time")
    added = {policy: [one[policy] - one["bare"] for one in seconds] for policy in POLICIES}
    for policy, differences in added.items():
        low, middle, high = statistics.quantiles(differences, n=4, method="inclusive")
        bar = f"; bar {BAR_SECONDS} s" if policy == POLICIES[0] else ""
        print(f"  holdfast run --policy {policy}: {middle:+.2f} s ({low:+.2f} to {high:+.2f}){bar}")
    return 1 if max(package, watch) > BAR or statistics.median(added[POLICIES[0]]) > BAR_SECONDS else 0


if __name__ == "__main__":
    raise SystemExit(main())
