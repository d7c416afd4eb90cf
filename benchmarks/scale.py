"""From 8 to 4,096 ranks, by simulation: `.venv/bin/python benchmarks/scale.py [--ranks 8 64 512 4096] [--watched 180]`.

A real training on four gloo ranks is recorded once. Its rows are then replayed as a day of so many ranks with steps of five
seconds: the same writers, the same columns, files that are still being written. While rows come in at the pace of the day, the
outside of the run (judge, upkeep, hang watch) works in a process of its own; then the rest of the day is written and asked.
A line with a bar fails the benchmark (exit 1) when it misses it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine, today
from signals import Measured

from holdfast.probe.compact import compact_run
from holdfast.probe.rows import last_rows
from holdfast.signals.many_ranks import Thinning, table_for, thinning_for
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES
from holdfast.signals.table import TableWriter
from holdfast.signals.trouble import Trouble
from holdfast.supervisor.outside import Outside

STEP_SECONDS, DAY = 5.0, 86_400.0
STEPS_A_DAY = int(DAY / STEP_SECONDS)
SAMPLES_A_DAY = int(DAY / 60.0)  # in a long run the sampled metrics are taken once a minute
SAMPLED = ("parameters", "modules", "inputs")
QUERY = "SELECT rank, max(step), avg(loss) FROM steps GROUP BY rank ORDER BY rank"
TRAINING = """
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
inputs = torch.randn(32768, 32)
data = TensorDataset(inputs, (inputs[:, :10] + 0.5 * torch.randn(32768, 10)).argmax(1))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler)
layers = [layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU())]
model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers, nn.Linear(32, 10)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2048)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
dist.destroy_process_group()
"""


Rows = dict[str, list[np.ndarray[Any, Any]]]


def record(folder: Path) -> list[Rows]:
    """The rows of a real training on four ranks, by rank and table, each table in the order of its columns."""
    (folder / "train.py").write_text(TRAINING)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "train.py"]
    words = [sys.executable, "-m", "holdfast", "run", "--name", "recorded", "--", *launcher]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(words, cwd=folder, check=True, capture_output=True, env=environment)
    recordings = RunFolder.open(folder / "runs" / "recorded").recordings()
    return [{name: _rows(one.path, name) for name in TABLES if (one.path / name).is_dir()} for one in recordings]


def _rows(folder: Path, name: str) -> list[np.ndarray[Any, Any]]:
    """Strings as numbers again, as a rank writes them."""
    columns = last_rows(folder, name, TABLES[name].column_names, 1 << 30)
    return [
        np.unique(values.astype(str), return_inverse=True)[1] if values.dtype == object else values for values in columns.values()
    ]


class Rank:
    """One rank of the replay: writes the next rows of each table, as far as it writes that table at all."""

    def __init__(self, run: RunFolder, rank: int, world: int, recorded: Rows) -> None:
        recording = run.claim(rank)
        host = socket.gethostname() if rank < 8 else f"node{rank // 8}"
        who = {"pid": os.getpid(), "host": host, "started": time.time()}
        (recording.path / "process.json").write_text(json.dumps(who))
        self._recorded = recorded
        self._every, self._offset = _interval(thinning_for(rank, world)), 37 * rank
        self._writers: dict[str, TableWriter] = {}
        for name in recorded:
            if (table := table_for(TABLES[name], rank, world)) is not None:
                self._writers[name] = TableWriter(recording.path, table, run_later=lambda job: job(), on_trouble=print)

    def write(self, first: int, last: int, ended: float) -> None:
        """The rows of steps `first` to `last`, of which the last ended at that time."""
        for name, writer in self._writers.items():
            start, count = self._span(name, first, last)
            if count:
                writer.extend(self._replayed(name, start, count, last, ended))

    def _span(self, name: str, first: int, last: int) -> tuple[int, int]:
        """The number of the first row, and how many there are."""
        rows_a_step = len(self._recorded[name][0]) / len(self._recorded["steps"][0])
        if name in SAMPLED:
            sampled = np.unique(self._recorded[name][0])
            rows_a_step = len(self._recorded[name][0]) / len(sampled) * SAMPLES_A_DAY / STEPS_A_DAY
        elif name == "loader":
            rows_a_step = STEP_SECONDS  # a row a second
        start, end = (int(rows_a_step * -(-step // self._every)) for step in (first, last + 1))
        return start, end - start

    def _replayed(self, name: str, start: int, count: int, last: int, ended: float) -> list[Any]:
        """Recorded rows from some point on, over and over; steps and times are those of the day."""
        columns = TABLES[name].column_names
        at = (self._offset + start + np.arange(count)) % len(self._recorded[name][0])
        rows = {column: values[at] for column, values in zip(columns, self._recorded[name], strict=True)}
        steps = np.linspace(last - (last % self._every) - self._every * (count - 1), last - last % self._every, count)
        rows["step"] = steps.astype(np.int64) // self._every * self._every
        noise = rows["seconds"] if "seconds" in rows else rows.get("step_seconds", np.zeros(count))
        if "time" in rows:
            rows["time"] = ended - (last - steps) * STEP_SECONDS + noise
        if "step_seconds" in rows:
            rows["step_seconds"] = STEP_SECONDS + np.nan_to_num(noise)
        return [rows[column.name] for column in self._writers[name].table.columns]


def _interval(thinning: Thinning | None) -> int:
    if thinning is None:
        return 1
    thinning.ended(0, STEP_SECONDS)
    return thinning.every


def watched(run: RunFolder, ranks: list[Rank], seconds: float) -> Iterator[Measured]:
    """The outside of the run at work, while every rank writes its rows at the pace of the day."""
    judge = subprocess.Popen(
        [sys.executable, __file__, "--outside", str(run.path), str(seconds)], stdout=subprocess.PIPE, text=True
    )
    step = 20
    while judge.poll() is None:
        step += 1
        started = time.time()
        for rank in ranks:
            rank.write(step, step, started)
        time.sleep(max(0.0, started + STEP_SECONDS - time.time()))
    assert judge.stdout is not None
    cpu, wall, memory = map(float, judge.stdout.read().split())
    yield Measured(what="judge, upkeep and hang watch, of one core", value=100 * cpu / wall, unit="%", at_most=5.0)
    yield Measured(what="their memory", value=memory, unit="MB", at_most=1000.0)


def outside(path: Path, seconds: float) -> None:
    """Watch a run as `holdfast run` does, and print CPU seconds, seconds and megabytes; starting up does not count."""
    run, hurry = RunFolder.open(path), threading.Event()
    with Outside(run, os.getpid(), Trouble(run.journal), hurry=hurry):
        time.sleep(5.0 + len(run.recordings()) / 100)
        began, used = time.monotonic(), time.process_time()
        time.sleep(seconds)
        print(time.process_time() - used, time.monotonic() - began, _most_memory())
        sys.stdout.flush()
        hurry.set()
    os._exit(0)


def _most_memory() -> float:
    """Megabytes; `ru_maxrss` would begin with those of the process that started this one."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM:"))


def command(what: str, words: list[str], at_most: float) -> Iterator[Measured]:
    """A command as a person types it: its seconds and CPU seconds, the best of three, and its memory."""
    code = (
        "import resource, subprocess, sys, time; s = time.perf_counter(); subprocess.run(sys.argv[1:], check=True, stdout=-3); "
    )
    code += "s = time.perf_counter() - s; r = resource.getrusage(resource.RUSAGE_CHILDREN); "
    code += "print(s, r.ru_utime + r.ru_stime, r.ru_maxrss / 1000)"
    words = [sys.executable, "-c", code, sys.executable, "-m", "holdfast", *words]
    tries = [subprocess.run(words, check=True, capture_output=True, text=True).stdout.split() for _ in range(3)]
    seconds, cpu, memory = (pick(float(one[at]) for one in tries) for at, pick in enumerate((min, min, max)))
    yield Measured(what=what, value=seconds, unit="s", at_most=at_most)
    yield Measured(what=f"{what}: CPU time", value=cpu, unit="s")
    yield Measured(what=f"{what}: memory", value=memory, unit="MB", at_most=1000.0)


def measure(folder: Path, recorded: list[Rows], world: int, seconds: float) -> Iterator[Measured]:
    run = RunFolder.create(folder, f"of-{world}", started=time.time(), host=socket.gethostname(), pid=os.getpid())
    ranks = [Rank(run, rank, world, recorded[rank % len(recorded)]) for rank in range(world)]
    for rank in ranks:
        rank.write(0, 20, time.time())
    yield from watched(run, ranks, seconds)
    steps = 20 + int(2 * seconds / STEP_SECONDS)
    for first in range(steps, STEPS_A_DAY, STEPS_A_DAY // 16):
        last = min(first + STEPS_A_DAY // 16, STEPS_A_DAY) - 1
        for rank in ranks:
            rank.write(first, last, time.time() - (STEPS_A_DAY - last) * STEP_SECONDS)
        compact_run(run)
    size = sum(file.stat().st_blocks * 512 for file in run.path.rglob("*") if file.is_file())
    yield Measured(what="the run folder after a day", value=size / 1e6, unit="MB", at_most=2000.0)
    yield from command("holdfast query, a row for each rank", ["query", "-t", str(run.path), "--limit", "9999", QUERY], 5.0)
    yield from command("holdfast ps", ["ps", "-t", str(run.path)], 3.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 512, 4096])
    parser.add_argument("--watched", type=float, default=180.0, metavar="SECONDS", help="how long the judge is measured")
    parser.add_argument("--outside", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.outside:
        outside(Path(arguments.outside[0]), float(arguments.outside[1]))
    print(f"{today()}, {machine(1)}; a day of {STEPS_A_DAY:,} steps")
    missed = 0
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        recorded = record(Path(name))
        for world in arguments.ranks:
            print(f"{world:,} ranks", flush=True)
            for measured in measure(Path(name), recorded, world, arguments.watched):
                print(measured, flush=True)
                missed += measured.missed
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
