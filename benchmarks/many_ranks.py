"""One question to two thousand ranks: `.venv/bin/python benchmarks/many_ranks.py [--ranks 2000]`.

The tables of the ranks are made, not trained: 1,000 steps each. They are asked as one run folder, first while all of it is still
in the segments that trainings write, then as Parquet; and through four servers with a quarter of the ranks each, as on four
machines.
A line with a bar fails the benchmark (exit 1) when it misses it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from signals import STEPS, Measured, noisy_steps

from holdfast.probe.cluster import find
from holdfast.probe.cluster_query import query_all
from holdfast.probe.compact import compact_run
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.table import TableWriter

STEPS_EACH = 1000
SERVERS = 4
BAR_SECONDS = 5.0
QUERIES = {
    "last step and mean loss of each rank": "SELECT rank, max(step), avg(loss) FROM steps GROUP BY rank ORDER BY rank",
    "samples and seconds of all": "SELECT sum(samples), sum(step_seconds), sum(data_seconds) FROM steps",
    "spread of the loss over the ranks, by step": "SELECT step, stddev(loss) FROM steps GROUP BY step ORDER BY step",
}


def make_run(folder: Path, ranks: int) -> RunFolder:
    """A run as that many ranks on machines of eight would leave it."""
    run = RunFolder.create(folder, "many", started=1.0)
    for rank in range(ranks):
        recording = run.claim(rank)
        (recording.path / "process.json").write_text(json.dumps({"pid": 1, "host": f"node{rank // 8}"}))
        writer = TableWriter(recording.path, STEPS, run_later=lambda job: job(), on_trouble=print)
        writer.extend(noisy_steps(0, STEPS_EACH))
        writer.close()
    return run


def asked(how: str, targets: list[str], ranks: int) -> Iterator[Measured]:
    """Each query as a person asks it: everything is found and opened anew."""
    for what, sql in QUERIES.items():
        started = time.perf_counter()
        cluster = find(targets)
        answer = query_all(cluster, sql, limit=ranks + STEPS_EACH, timeout=60)
        took = time.perf_counter() - started
        assert not cluster.problems and len(answer.rows) in (1, ranks, STEPS_EACH), (cluster.problems, len(answer.rows))
        yield Measured(what=f"{how}: {what}", value=took, unit="s", at_most=BAR_SECONDS)


def as_command(run: RunFolder) -> Measured:
    """The first of them as a person types it, with the start of the interpreter."""
    words = [sys.executable, "-m", "holdfast", "query", "-t", str(run.path), "--limit", "9999", next(iter(QUERIES.values()))]
    started = time.perf_counter()
    subprocess.run(words, check=True, capture_output=True)
    return Measured(what="the same as a command", value=time.perf_counter() - started, unit="s", at_most=BAR_SECONDS)


def through_servers(folder: Path, run: RunFolder, ranks: int) -> Iterator[Measured]:
    """The same ranks in four runs, each behind a server of its own."""
    servers = []
    try:
        for number in range(SERVERS):
            part = RunFolder.create(folder, f"part-{number}", started=float(number))
            for rank in range(number, ranks, SERVERS):
                (part.path / f"rank-{rank}").symlink_to(run.path / f"rank-{rank}")
            words = [sys.executable, "-m", "holdfast", "serve", "--listen", "127.0.0.1:0", "-t", str(part.path)]
            servers.append(subprocess.Popen(words, stderr=subprocess.PIPE, text=True))
        addresses = []
        for server in servers:
            assert server.stderr is not None
            found = re.search(r"-t (\S+)", server.stderr.readline())
            assert found is not None
            addresses.append(found[1])
        yield from asked(f"{SERVERS} servers", addresses, ranks)
    finally:
        for server in servers:
            server.terminate()
            server.wait()


def measure(folder: Path, ranks: int) -> Iterator[Measured]:
    run = make_run(folder, ranks)
    yield from asked("as written", [str(run.path)], ranks)
    yield as_command(run)
    yield from through_servers(folder, run, ranks)
    compact_run(run, final=True)
    yield from asked("as Parquet", [str(run.path)], ranks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2000)
    ranks = parser.parse_args().ranks
    print(f"{platform.machine()} {platform.system()}, {os.cpu_count()} cores, {ranks:,} ranks of {STEPS_EACH:,} steps")
    missed = 0
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        for measured in measure(Path(name), ranks):
            print(measured, flush=True)
            missed += measured.missed
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
