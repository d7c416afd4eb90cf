"""How often the first call of an MKL vector function differs from the second, with and without Holdfast's own call before it.

    python benchmarks/first_call.py --seconds 300

Each trial is a process of its own, forked before the first call; four at a time, as the fault needs a busy machine.
A build of torch without MKL shows none.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # idle threads leave the cores to others: many more trials
import torch
from machine import machine

from holdfast.inside.seeding import settle_vector_math

_SIDE_BY_SIDE = 4


def differs(settled: bool) -> bool:
    """Whether the first `exp` of many numbers differs from the second one, in this process."""
    torch.manual_seed(0)
    values = torch.rand(1 << 14)
    if settled:
        settle_vector_math()
    return not torch.equal(torch.exp(values), torch.exp(values))


def trials(settled: bool, seconds: float, count: multiprocessing.SimpleQueue[tuple[int, int]]) -> None:
    """Fork one process after the other."""
    made, bad, end = 0, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        child = os.fork()
        if not child:
            os._exit(int(differs(settled)))
        made, bad = made + 1, bad + (os.waitpid(child, 0)[1] != 0)
    count.put((made, bad))


def main() -> int:
    """Both ways, in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=300.0, help="for both together")
    seconds = parser.parse_args().seconds
    print(machine(1))
    total = {}
    for settled in (False, True):
        count: multiprocessing.SimpleQueue[tuple[int, int]] = multiprocessing.SimpleQueue()
        workers = [multiprocessing.Process(target=trials, args=(settled, seconds / 2, count)) for _ in range(_SIDE_BY_SIDE)]
        for worker in workers:
            worker.start()
        results = [count.get() for _ in workers]
        made, bad = (sum(values) for values in zip(*results, strict=True))
        total[settled] = bad
        print(f"{'after Holdfast has called it' if settled else 'as torch comes':30} {bad} of {made} processes differ")
    return 1 if total[True] else 0


if __name__ == "__main__":
    sys.exit(main())
