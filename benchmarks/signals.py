"""What recording costs and what it keeps: `.venv/bin/python benchmarks/signals.py [--quick]`.

Every line is a measurement on this machine, now. A line with a bar fails the benchmark (exit 1) when it misses it.
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
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt

from holdfast.probe.compact import compact_run
from holdfast.probe.sql import query
from holdfast.probe.table_files import Owner, open_owned
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES, Kind
from holdfast.signals.table import TableWriter

MILLION = 1_000_000
STEPS = TABLES["steps"]
KILLER = Path(__file__).parents[1] / "tests" / "victims" / "killed_writer.py"
QUERIES = {
    "the last 20 losses": "SELECT step, loss FROM steps ORDER BY step DESC LIMIT 20",
    "mean loss by 100,000 steps": "SELECT step // 100000 AS part, AVG(loss) FROM steps GROUP BY 1 ORDER BY 1",
    "the 10 slowest steps": "SELECT step, step_seconds, data_seconds FROM steps ORDER BY step_seconds DESC LIMIT 10",
    "all numbers of one step": "SELECT * FROM steps WHERE step = 1234567",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One number, and the most it may be."""

    what: str
    value: float
    unit: str
    at_most: float | None = None

    @property
    def missed(self) -> bool:
        return self.at_most is not None and self.value > self.at_most

    def __str__(self) -> str:
        bar = "" if self.at_most is None else f"   at most {self.at_most:g} {'MISSED' if self.missed else 'ok'}"
        return f"  {self.what:<58}{self.value:>12,.1f} {self.unit:<6}{bar}"


def appending(folder: Path, rows: int = 200_000) -> Iterator[Measured]:
    """Append single rows, as the training thread does."""
    recorder = Recorder.start(RunFolder.create(folder, "append"), rank=0)
    append, clock = recorder.table("steps").append, time.perf_counter_ns
    row = [7 if column.kind is Kind.INT else 0.123456789 for column in STEPS.columns]
    took = []
    for _ in range(rows):
        started = clock()
        append(row)
        took.append(clock() - started)
    recorder.close()
    took.sort()
    width = len(STEPS.columns)
    yield Measured(what=f"append a row of {width} columns, median", value=statistics.median(took) / 1e3, unit="µs", at_most=5.0)
    yield Measured(what=f"append a row of {width} columns, p99", value=took[int(0.99 * rows)] / 1e3, unit="µs")
    yield Measured(what=f"rows dropped of {rows:,}", value=recorder.dropped, unit="rows", at_most=0)


def noisy_steps(start: int, count: int) -> list[npt.NDArray[np.float64] | npt.NDArray[np.int64] | float | int]:
    """Rows as a training on a GPU makes them: float32 losses and norms, clock noise, weights sampled every 100 steps."""
    noise, step = np.random.default_rng(start), np.arange(start, start + count)
    single = [np.float32(scale * (1 + 0.1 * noise.standard_normal(count))).astype(float) for scale in (2.0, 0.8, 140.0, 1e-3)]
    seconds = 0.05 * (1 + 0.05 * noise.random(count))
    sampled = step % 100 == 0
    known = {
        "step": step, "epoch": step // 5000, "time": 1.7e9 + 0.05 * start + np.cumsum(seconds), "loss": single[0],
        "lr": 3e-4 * (0.5 + 0.5 * np.cos(step / 1e6)), "grad_norm": single[1], "step_seconds": seconds,
        "weight_norm": np.where(sampled, single[2], Kind.FLOAT.missing), "data_seconds": 0.001 * noise.random(count),
        "update_ratio": np.where(sampled, single[3], Kind.FLOAT.missing), "samples": 64, "skipped": 0,
        "gpu_allocated": 8_000_000_000 + 512 * noise.integers(0, 4000, count), "gpu_reserved": 12_884_901_888,
        "host_rss": 3_000_000_000 + 4096 * (step // 500), "gpu_peak": 9_500_000_000, "non_finite": 0, "backwards": 1,
        "clip_norm": 1.0, "holdfast_seconds": 1e-5 * (1 + noise.random(count)),
    }  # fmt: skip
    return [known.get(column.name, column.kind.missing) for column in STEPS.columns]


def write_million(writer: TableWriter, start: int) -> None:
    """Append a million rows in blocks; every file is made at once, so none is dropped."""
    block = 50_000
    for first in range(start, start + MILLION, block):
        writer.extend(noisy_steps(first, block))
    if writer.dropped:
        raise SystemExit(f"{writer.dropped} rows were dropped: the disk is full or too slow to measure on")


def reading(folder: Path, millions: int) -> Iterator[Measured]:
    """A million rows as Arrow, raw and as Parquet; disk use; queries over all of it."""
    run = RunFolder.create(folder, "read")
    recording = run.claim(0).path
    writer = TableWriter(recording, STEPS, run_later=lambda job: job(), on_trouble=print)
    write_million(writer, 0)
    yield Measured(what="1 million live rows to an Arrow table", value=arrow_milliseconds(recording), unit="ms", at_most=100.0)
    yield Measured(what="a million steps on disk, as they are written", value=megabytes(recording), unit="MB")
    for million in range(1, millions):
        write_million(writer, million * MILLION)
        compact_run(run)
    writer.close()
    started = time.perf_counter()
    compacted = compact_run(run, final=True)
    per_million = 1e6 * (time.perf_counter() - started) / max(compacted.rows, 1)
    yield Measured(what="turning a million rows into Parquet", value=per_million, unit="s")
    yield Measured(what="a million steps on disk, as Parquet", value=megabytes(recording) / millions, unit="MB")
    yield from queries(run, millions)


def queries(run: RunFolder, millions: int) -> Iterator[Measured]:
    """Each query as a person asks it: everything is opened anew."""
    for what, sql in QUERIES.items():
        started = time.perf_counter()
        query(run, sql, timeout=60)
        took = (time.perf_counter() - started) * 1e3
        yield Measured(what=f"query {millions} million steps: {what}", value=took, unit="ms")


def arrow_milliseconds(recording: Path) -> float:
    took = []
    for _ in range(7):
        started = time.perf_counter()
        files = open_owned("steps", [Owner(recording, 0, 0)])
        assert files.live().scanner(files.schema.names).to_reader().read_all().num_rows == MILLION
        took.append((time.perf_counter() - started) * 1e3)
    return statistics.median(took)


def megabytes(folder: Path) -> float:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()) / 1e6


def killing(kills: int) -> Iterator[Measured]:
    """Kill writers at random moments, in as many processes as there are cores."""
    jobs = min(os.cpu_count() or 1, kills)
    shares = [kills // jobs + (number < kills % jobs) for number in range(jobs)]
    commands = [[sys.executable, str(KILLER), str(share), str(time.time_ns() + number)] for number, share in enumerate(shares)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    total = Counter[str]()
    for process in running:
        answer, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"{KILLER.name} failed with {process.returncode}")
        total.update(json.loads(answer))
    yield Measured(what="writers that failed before they were killed", value=total["victims_that_failed"], unit="", at_most=0)
    yield Measured(what="writers killed at random moments", value=total["kills"], unit="kills")
    yield Measured(what="rows they had published", value=total["published"], unit="rows")
    yield Measured(what="of these, rows that cannot be read", value=total["lost"], unit="rows", at_most=0)
    yield Measured(what="half rows that were read", value=total["half_rows"] + total["out_of_order"], unit="rows", at_most=0)
    yield Measured(what="torn tails recognised", value=total["torn_tails"], unit="")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1 million steps and 100 kills instead of 5 million and 1,000")
    quick = parser.parse_args().quick
    print(f"{platform.machine()} {platform.system()}, {os.cpu_count()} cores, Python {platform.python_version()}", end=", ")
    print(f"torch {version('torch')}, pyarrow {version('pyarrow')}, duckdb {version('duckdb')}")
    missed = 0
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        for measuring in (appending(folder), reading(folder, 1 if quick else 5), killing(100 if quick else 1000)):
            for measured in measuring:
                print(measured, flush=True)
                missed += measured.missed
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
