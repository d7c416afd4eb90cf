"""What `import holdfast` costs beside `import torch`, and `holdfast.watch` with all that it needs: under 10 % each.

python benchmarks/import_time.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

BAR = 0.10
MEASURE = """
import gc, json, time
gc.disable()  # a collection of all that torch made takes as long as half of it, and falls anywhere
times = [time.perf_counter()]
import torch; times.append(time.perf_counter())
import holdfast; times.append(time.perf_counter())
holdfast.watch; times.append(time.perf_counter())
print(json.dumps([(end - times[1]) / (times[1] - times[0]) for end in times[2:]]))
"""


def fractions_of_torch() -> list[float]:
    """How long Holdfast takes, as fractions of the `import torch` before it in the same process."""
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, timeout=120, check=True)
    return [float(fraction) for fraction in json.loads(done.stdout)]


def main() -> int:
    """Measure, and fail where the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    fractions_of_torch()  # fills the page cache
    package, watch = (statistics.median(each) for each in zip(*(fractions_of_torch() for _ in range(rounds)), strict=True))
    print(f"import holdfast: {package:.1%} of import torch; holdfast.watch: {watch:.1%}; bar {BAR:.0%}")
    return 1 if max(package, watch) > BAR else 0


if __name__ == "__main__":
    raise SystemExit(main())
