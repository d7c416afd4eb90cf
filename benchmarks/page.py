"""What the page costs: `.venv/bin/python benchmarks/page.py`.

Ten runs that record ten steps a second each, listed in a browser with one of them open; the first view of a run of a million
steps; what a browser downloads. CPU time, not the clock: other work on the machine does not count.
A line with a bar fails the benchmark (exit 1) when it misses it.
"""

from __future__ import annotations

import gzip
import http.client
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

import holdfast.web.app
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import STEPS
from holdfast.web.curves import RunCurves

LIVE, SECONDS, MILLION = 10, 30.0, 1_000_000
STATIC = Path(holdfast.web.app.__file__).parent / "static"


class Measured(NamedTuple):
    """One number, and the most it may be."""

    what: str
    value: float
    unit: str
    at_most: float

    def __str__(self) -> str:
        bar = "MISSED" if self.value > self.at_most else "ok"
        return f"  {self.what:<62}{self.value:>8,.2f} {self.unit:<3}  at most {self.at_most:g} {bar}"


def row(step: int) -> list[float | int]:
    """One step."""
    known = {"step": step, "epoch": step // 500, "time": 1e9 + step, "loss": 2.0 / (1 + step / 1e4), "lr": 0.1, "grad_norm": 1.0,
             "step_seconds": 0.1, "data_seconds": 0.01, "host_rss": 10**9}  # fmt: skip
    return [known.get(column.name, column.kind.missing) for column in STEPS.columns]


def first_view(folder: Path) -> Iterator[Measured]:
    """Read a long run and draw all of it."""
    run = RunFolder.create(folder, "million", started=1.0, ended=2.0, exit_code=0)
    recorder = Recorder.start(run, 0)
    for step in range(MILLION):
        recorder.table("steps").append(row(step))
    recorder.close()
    curves, begun = RunCurves(run), time.process_time()
    curves.update()
    curves.answer(points=1400)
    yield Measured("first view of a million steps, CPU time", time.process_time() - begun, "s", 1.0)


def live_runs(folder: Path) -> Iterator[Measured]:
    """A server of live runs, with the list and one run open."""
    info = {"started": time.time(), "pid": os.getpid(), "host": platform.node()}
    recorders = [Recorder.start(RunFolder.create(folder / "runs", f"run-{number}", **info), 0) for number in range(LIVE)]
    (folder / "runtime").mkdir()
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder / "runtime")}
    words = [sys.executable, "-m", "holdfast", "ui", "--no-open", "--listen", "127.0.0.1:0"]
    server = subprocess.Popen(words, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    found = re.search(r"127\.0\.0\.1:(\d+)/#token=(\S+)", server.stderr.readline())
    assert found
    stop = threading.Event()

    def record() -> None:
        step = 0
        while not stop.wait(0.1):
            for recorder in recorders:
                recorder.table("steps").append(row(step))
            step += 1

    def follow(path: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]))
        connection.request("GET", path, headers={"Authorization": f"Bearer {found[2]}"})
        answer = connection.getresponse()
        while not stop.is_set() and answer.readline():
            pass

    for job in (record, lambda: follow("/api/live"), lambda: follow("/api/live?run=run-3&after=0&marks=0")):
        threading.Thread(target=job, daemon=True).start()
    process = psutil.Process(server.pid)
    time.sleep(5.0)
    before, begun = process.cpu_times(), time.monotonic()
    time.sleep(SECONDS)
    after, memory = process.cpu_times(), process.memory_info().rss
    used = (after.user + after.system - before.user - before.system) / (time.monotonic() - begun)
    stop.set()
    server.terminate()
    server.wait()
    yield Measured(f"server of {LIVE} live runs, list and one run open, of a core", 100 * used, "%", 5.0)
    yield Measured("its memory", memory / 1e6, "MB", 150.0)


def main() -> int:
    """Measure everything."""
    print(f"{platform.machine()}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        lines = [*first_view(Path(folder)), *live_runs(Path(folder))]
    size = sum(len(gzip.compress(one.read_bytes())) for one in STATIC.iterdir())
    lines.append(Measured("the page, compressed", size / 1e3, "kB", 150.0))
    for line in lines:
        print(line)
    print(json.dumps({line.what: round(line.value, 3) for line in lines}))
    return int(any(line.value > line.at_most for line in lines))


if __name__ == "__main__":
    sys.exit(main())
