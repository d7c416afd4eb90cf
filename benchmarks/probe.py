"""How long a question to a busy training takes, and what the questions cost it: `.venv/bin/python benchmarks/probe.py [--quick]`.

One training of about 20 ms a step runs on one core under `holdfast run` and is asked: SQL, code between two steps, stacks. Then
ten clients ask it SQL, each once a second, in turns with nobody asking; the times of its steps are compared within that one run.
A line with a bar fails the benchmark (exit 1) when it misses it.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
from signals import Measured

from holdfast.probe.changing import evaluate, ranks_to_ask
from holdfast.probe.cluster import find
from holdfast.probe.cluster_query import query_all
from holdfast.probe.rows import last_rows
from holdfast.probe.stacks.report import report_on_run
from holdfast.signals.run_folder import RunFolder

SQL = "SELECT rank, max(step), avg(loss), avg(step_seconds) FROM steps GROUP BY rank"
CLIENTS = 10
EVERY_SECONDS = 1.0
SETTLE_SECONDS = 0.5
TRAINING = """
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
conv = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4)]
model = nn.Sequential(*conv, nn.Flatten(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10))
x, y = torch.randn(16, 1, 28, 28), torch.randint(0, 10, (16,))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
while True:
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
"""


class Ratio(Measured):
    """A number near 1."""

    def __str__(self) -> str:
        return (
            f"  {self.what:<58}{self.value:>12.3f} {self.unit:<6}   at most {self.at_most:g} {'MISSED' if self.missed else 'ok'}"
        )


@contextlib.contextmanager
def busy_training(folder: Path) -> Iterator[RunFolder]:
    """A training that goes on until nobody needs it any more."""
    (folder / "train.py").write_text(TRAINING)
    words = [sys.executable, "-m", "holdfast", "run", "--name", "busy", "--", sys.executable, "train.py"]
    process = subprocess.Popen(words, cwd=folder, stderr=subprocess.DEVNULL)
    try:
        path = folder / "runs" / "busy"
        while not (path / "rank-0").exists() or len(last_rows(path / "rank-0", "steps", ("step",), 300)["step"]) < 300:
            if process.poll() is not None:
                raise SystemExit("the training ended before it could be asked")
            time.sleep(0.1)
        yield RunFolder.open(path)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


@contextlib.contextmanager
def server_of(run: RunFolder) -> Iterator[str]:
    """`holdfast serve` beside it; its address."""
    words = [sys.executable, "-m", "holdfast", "serve", "--listen", "127.0.0.1:0", "-t", str(run.path)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = re.search(r"-t (\S+)", process.stderr.readline())
        assert found is not None
        yield found[1]
    finally:
        process.terminate()
        process.wait()


def median_ms(what: str, times: int, job: Callable[[], object], at_most: float | None = None) -> Measured:
    took = []
    for _ in range(times):
        started = time.perf_counter()
        job()
        took.append((time.perf_counter() - started) * 1e3)
    return Measured(what=what, value=statistics.median(took), unit="ms", at_most=at_most)


def command(*words: str) -> Callable[[], object]:
    """The same as a person types it, with the start of the interpreter."""
    return lambda: subprocess.run([sys.executable, "-m", "holdfast", *words], check=False, capture_output=True)


def round_trips(run: RunFolder, address: str, times: int) -> Iterator[Measured]:
    name = str(run.path)
    yield median_ms("query, median", times, lambda: query_all(find([name]), SQL))
    yield median_ms("query through a server, median", times, lambda: query_all(find([address]), SQL))
    code = "optimizer.param_groups[0]['lr']"
    yield median_ms("eval between two steps, median", times, lambda: evaluate(ranks_to_ask(run)[:1], code, now=False, seconds=30))
    yield median_ms("eval --now, median", times, lambda: evaluate(ranks_to_ask(run)[:1], code, now=True, seconds=30))
    yield median_ms("backtrace, median", max(3, times // 5), lambda: report_on_run(run), at_most=2000.0)
    few = max(3, times // 8)
    yield median_ms("the command `holdfast query`, median", few, command("query", "-t", name, SQL))
    yield median_ms("the command `holdfast eval`, median", few, command("eval", "-t", name, code))
    yield median_ms("the command `holdfast backtrace`, median", few, command("backtrace", "-t", name))


def client(target: str, number: int, may_ask: Event, asked: multiprocessing.Queue[int]) -> None:
    """One of the ten: asks while it may, once a second."""
    while True:
        may_ask.wait()
        time.sleep(EVERY_SECONDS * number / CLIENTS)
        while may_ask.is_set():
            started = time.monotonic()
            query_all(find([target]), SQL)
            asked.put(number)
            time.sleep(max(0.0, EVERY_SECONDS - (time.monotonic() - started)))


def while_asked(run: RunFolder, how: str, target: str, rounds: int, seconds: float) -> Iterator[Measured]:
    """Steps while ten clients ask and while nobody does, in turns; each round is compared with itself."""
    context = multiprocessing.get_context("spawn")
    may_ask, asked = context.Event(), context.Queue()
    clients = [context.Process(target=client, args=(target, number, may_ask, asked), daemon=True) for number in range(CLIENTS)]
    for one in clients:
        one.start()
    may_ask.set()
    for _ in range(CLIENTS):
        asked.get(timeout=120)  # all of them have loaded what they need
    may_ask.clear()
    spans: list[tuple[tuple[float, float], tuple[float, float]]] = []
    before = asked.qsize()
    for number in range(rounds):
        order = (False, True) if number % 2 else (True, False)
        both = {busy: phase(may_ask, seconds, busy=busy) for busy in order}
        spans.append((both[False], both[True]))
    count = asked.qsize() - before
    for one in clients:
        one.kill()
        one.join()
    ratios = [step_time(run, busy) / step_time(run, quiet) for quiet, busy in spans]
    told = " ".join(f"{ratio:.3f}" for ratio in sorted(ratios))
    print(f"  {how}: {count / (rounds * seconds):.1f} queries a second; ratios {told}")
    yield Ratio(what=f"step while {how} query it, against nobody", value=statistics.median(ratios), unit="x", at_most=1.02)


def phase(may_ask: Event, seconds: float, *, busy: bool) -> tuple[float, float]:
    if busy:
        may_ask.set()
    time.sleep(SETTLE_SECONDS)
    started = time.time()
    time.sleep(seconds)
    ended = time.time()
    may_ask.clear()
    time.sleep(EVERY_SECONDS)
    return started, ended


def step_time(run: RunFolder, span: tuple[float, float]) -> float:
    """The median time of the steps that ended within the span."""
    rows = last_rows(run.path / "rank-0", "steps", ("time", "step_seconds"), 1_000_000)
    inside = (rows["time"] >= span[0]) & (rows["time"] < span[1])
    return float(np.median(rows["step_seconds"][inside]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few round trips and two short rounds: shows that it runs")
    quick = parser.parse_args().quick
    print(f"{platform.machine()} {platform.system()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    rounds, seconds = (2, 2.0) if quick else (8, 8.0)
    missed = 0
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        os.environ["XDG_RUNTIME_DIR"] = name
        with busy_training(Path(name)) as run, server_of(run) as address:
            for measuring in (
                round_trips(run, address, 8 if quick else 40),
                while_asked(run, "ten clients", str(run.path), rounds, seconds),
                while_asked(run, "ten clients of a server", address, rounds, seconds),
            ):
                for measured in measuring:
                    print(measured, flush=True)
                    missed += measured.missed
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
