"""What the page costs: `.venv/bin/python benchmarks/page.py`.

Ten runs that record ten steps a second each, listed with one of them open; the first view of a run of a million steps; what a
browser downloads: CPU time, not the clock, so that other work on the machine does not count. And the step of a training with its
page open, in rounds of three seconds: server and page are stopped, continued and stopped again; printed is the median ratio with
the interval that holds the true one in 95 of 100 such runs, of the clock and of the training's own CPU time: the clock says
something only where no other work competes for the cores. The browser itself is elsewhere: only what it asks for is measured.
A line with a bar fails the benchmark (exit 1) when it misses it.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import math
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import psutil

import holdfast.web.app
from holdfast.diagnosis.plot import STATIC as PLOTS
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import STEPS
from holdfast.web.curves import RunCurves

LIVE, SECONDS, MILLION = 10, 30.0, 1_000_000
PHASE = 1.0  # seconds: the server looks twice
STATIC = (Path(holdfast.web.app.__file__).parent / "static", PLOTS)


class Measured(NamedTuple):
    """One number, and the most it may be."""

    what: str
    value: float
    unit: str
    at_most: float

    def __str__(self) -> str:
        bar = "MISSED" if self.value > self.at_most else "ok"
        return f"  {self.what:<62}{self.value:>8,.3f} {self.unit:<3}  at most {self.at_most:g} {bar}"


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


@contextmanager
def server_of(folder: Path) -> Iterator[tuple[psutil.Process, int, str]]:
    """`holdfast ui` in a process of its own: the process, its port, its token."""
    (folder / "runtime").mkdir(exist_ok=True)
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder / "runtime")}
    words = [sys.executable, "-m", "holdfast", "ui", "--no-open", "--listen", "127.0.0.1:0"]
    server = subprocess.Popen(words, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    found = re.search(r"127\.0\.0\.1:(\d+)/#token=(\S+)", server.stderr.readline())
    assert found
    try:
        yield psutil.Process(server.pid), int(found[1]), found[2]
    finally:
        server.send_signal(signal.SIGCONT)
        server.terminate()
        server.wait()


def follow(port: int, token: str, path: str, stop: threading.Event, arrived: list[tuple[float, int]]) -> None:
    """What an open page does: read one stream of events, and come again when it ends. Notes when which step came."""
    while not stop.is_set():
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            while not stop.is_set() and (line := answer.readline()):
                if line.startswith(b'data: {"row"'):
                    arrived.append((time.monotonic(), json.loads(line[6:])["row"]["step"] or 0))


def open_page(port: int, token: str, run: str, stop: threading.Event) -> list[tuple[float, int]]:
    """The list of runs, and one of them: when which of its steps came."""
    arrived: list[tuple[float, int]] = []
    for path in ("/api/live", f"/api/live?run={run}&after=0&marks=0"):
        threading.Thread(target=follow, args=(port, token, path, stop, arrived), daemon=True).start()
    return arrived


def live_runs(folder: Path) -> Iterator[Measured]:
    """A server of live runs, with the list and one run open."""
    info = {"started": time.time(), "pid": os.getpid(), "host": platform.node()}
    recorders = [Recorder.start(RunFolder.create(folder / "runs", f"run-{number}", **info), 0) for number in range(LIVE)]
    stop, written = threading.Event(), list[float]()

    def record() -> None:
        while not stop.wait(0.1):
            for recorder in recorders:
                recorder.table("steps").append(row(len(written)))
            written.append(time.monotonic())

    with server_of(folder) as (process, port, token):
        threading.Thread(target=record, daemon=True).start()
        arrived = open_page(port, token, "run-3", stop)
        time.sleep(5.0)
        before, begun = process.cpu_times(), time.monotonic()
        time.sleep(SECONDS)
        after, memory = process.cpu_times(), process.memory_info().rss
        used = (after.user + after.system - before.user - before.system) / (time.monotonic() - begun)
        stop.set()
    yield Measured(f"server of {LIVE} live runs, list and one run open, of a core", 100 * used, "%", 5.0)
    yield Measured("its memory", memory / 1e6, "MB", 150.0)
    waits = [at - written[last + 1] for (_, last), (at, step) in pairwise(arrived) if step > last]
    yield Measured(f"a step's way to the open page, longest of {len(waits)}", max(waits), "s", 1.0)


def beside_a_training(folder: Path, rounds: int) -> Iterator[Measured]:
    """A step of a training with its page open, against the steps right before and after it with server and page stopped."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(layer for _ in range(4) for layer in (torch.nn.Linear(512, 512), torch.nn.ReLU())))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(64, 512)

    def step() -> None:
        optimizer.zero_grad()
        (model(batch) - batch).square().mean().backward()
        optimizer.step()

    def seconds_a_step() -> tuple[float, float]:
        begun, used, steps = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - begun < PHASE:
            step()
            steps += 1
        return (time.perf_counter() - begun) / steps, (time.process_time() - used) / steps

    (folder / "runs").mkdir()
    with holdfast.watch(model, optimizer, name="trained", folder=folder / "runs"), server_of(folder) as (process, port, token):
        client = subprocess.Popen([sys.executable, __file__, "--follow", str(port), token, "trained"])
        both = [process, psutil.Process(client.pid)]
        until = time.monotonic() + 10.0
        while time.monotonic() < until:  # the page has been open for a while
            step()
        ratios = []
        for _ in range(rounds):
            times = []
            for move in ("suspend", "resume", "suspend"):
                for one in both:
                    getattr(one, move)()
                times.append(seconds_a_step())
            ratios.append([now / ((before + after) / 2) for before, now, after in zip(*times, strict=True)])
        client.kill()
        client.wait()
    half = 0.98 * math.sqrt(rounds)
    for clock, values in zip(("a step", "its CPU time"), zip(*ratios, strict=True), strict=True):
        ordered = sorted(values)
        low, high = (ordered[min(max(round(rounds / 2 + side * half), 0), rounds - 1)] for side in (-1, 1))
        what = f"{clock} with its page open ({low:.3f} to {high:.3f}, {rounds} rounds)"
        yield Measured(what, statistics.median(ordered), "x", 1.005)


def main() -> int:
    """Measure everything."""
    if sys.argv[1:2] == ["--follow"]:
        port, token, run = sys.argv[2:]
        open_page(int(port), token, run, never := threading.Event())
        never.wait()
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=60, help="of three seconds, with and without the page")
    rounds = parser.parse_args().rounds
    print(f"{platform.machine()}, {os.cpu_count()} cores")
    lines = []
    for measure in (first_view, live_runs, partial(beside_a_training, rounds=rounds)):
        with tempfile.TemporaryDirectory() as folder:
            lines += measure(Path(folder))
    size = sum(len(gzip.compress(one.read_bytes())) for static in STATIC for one in static.iterdir())
    lines.append(Measured("the page, compressed", size / 1e3, "kB", 150.0))
    for line in lines:
        print(line)
    print(json.dumps({line.what: round(line.value, 3) for line in lines}))
    return int(any(line.value > line.at_most for line in lines))


if __name__ == "__main__":
    sys.exit(main())
