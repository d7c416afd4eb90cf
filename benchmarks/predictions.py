"""Many predictions through `holdfast.PredictionWriter`: resident memory at its peak, and rows a second.

python benchmarks/predictions.py [--rows 20000000]                                     an energy and a position
python benchmarks/predictions.py --rows 1000000 --channels 238 [--format root]         all channels of a sensor array
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from holdfast.train.sensors.predictions import writer_of

BATCH, MOST = 4096, 300


def peak() -> float:
    """Megabytes that this process has had in memory at most."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def main() -> int:
    """Write them, and compare the peak with the bar."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--channels", type=int, default=0, help="of a sensor array, instead of a position")
    parser.add_argument("--format", choices=("parquet", "root"), default="parquet")
    arguments = parser.parse_args()
    random, rows, width = np.random.default_rng(0), arguments.rows, arguments.channels or 3
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        with writer_of(arguments.format, Path(folder) / "predictions") as writer:
            for first in range(0, rows, BATCH):
                count = min(BATCH, rows - first)
                values = random.random((count, 1 + width), dtype=np.float32)
                writer.write(event=np.arange(first, first + count), energy=values[:, 0], position=values[:, 1:])
        seconds = time.perf_counter() - begun
        size = sum(file.stat().st_size for file in Path(folder).rglob("rank-*"))
    used = peak()
    print(f"{writer.rows:,} rows, {size / 1e6:,.0f} MB on disk, {writer.rows / seconds / 1e6:.2f} million rows a second")
    print(f"  resident memory at its peak {used:,.0f} MB   at most {MOST} {'ok' if used <= MOST else 'MISSED'}")
    return 0 if used <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
