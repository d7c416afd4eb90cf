"""`import holdfast` costs next to nothing beside `import torch`."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

import pytest

RUNS = 2
MEASURE = """
import gc, json, time
gc.disable()  # a collection of all that torch made takes as long as half of it, and falls anywhere
times = [time.perf_counter()]
import torch; times.append(time.perf_counter())
import holdfast; times.append(time.perf_counter())
holdfast.watch; times.append(time.perf_counter())
print(json.dumps([(end - times[1]) / (times[1] - times[0]) for end in times[2:]]))
"""


def shares_of_torch() -> list[float]:
    """How long Holdfast takes, as shares of the `import torch` before it in the same process."""
    answer = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 0, answer.stderr
    return [float(share) for share in json.loads(answer.stdout)]


@pytest.fixture(scope="module")
def medians() -> tuple[float, float]:
    """The two shares, over several processes; the first one only fills the page cache."""
    shares_of_torch()
    package, watch = zip(*(shares_of_torch() for _ in range(RUNS)), strict=True)
    return statistics.median(package), statistics.median(watch)


def test_importing_holdfast_adds_under_ten_percent_to_importing_torch(medians: tuple[float, float]) -> None:
    assert medians[0] < 0.10, f"`import holdfast` takes {medians[0]:.1%} of `import torch`"


def test_loading_all_that_watch_needs_adds_under_ten_percent_to_importing_torch(medians: tuple[float, float]) -> None:
    assert medians[1] < 0.10, f"`holdfast.watch` takes {medians[1]:.1%} of `import torch`"
