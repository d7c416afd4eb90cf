"""How long `holdfast backtrace` takes on six hangs, as a person types it: `.venv/bin/python benchmarks/backtrace.py [--quick]`.

Each victim hangs alone on the machine (tests/victims/hangs_*.py), and is asked a few times with the start of the interpreter. The
sentence must name what is wrong, within 2 s; else the benchmark fails (exit 1).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from signals import Measured

from holdfast.probe.rows import last_rows

VICTIMS = Path(__file__).parents[1] / "tests" / "victims"
HOLDFAST = (sys.executable, "-m", "holdfast")
AT_MOST = 2000.0  # ms
STUCK_FOR = 3.0  # seconds without a step, before it is asked
ALONE = {"`while True`": "loop", "two locks in deadlock": "deadlock", "C code that holds the interpreter lock": "gil"}
KINDS = {"loop": "loop", "deadlock": "deadlock", "gil": "gil", "stopped": "stopped", "loader": "worker", "ranks": "missing"}


def words_of(victim: str, folder: Path) -> list[str]:
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    if victim == "loader":
        return [*HOLDFAST, "run", "--", sys.executable, str(VICTIMS / "hangs_loader.py"), str(folder / "pipe")]
    if victim == "ranks":
        return [*HOLDFAST, "run", "--", torchrun, "--standalone", "--nproc_per_node=2", str(VICTIMS / "hangs_collective.py")]
    kind = "sleeps" if victim == "stopped" else victim
    return [sys.executable, str(VICTIMS / "hangs_alone.py"), str(folder / "runs"), kind]


@contextlib.contextmanager
def hanging(victim: str, folder: Path) -> Iterator[None]:
    """The victim, from when it stands still."""
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    silence = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(words_of(victim, folder), cwd=folder, env=environment, **silence)
    try:
        until_it_hangs(folder)
        if victim == "stopped":
            process.send_signal(signal.SIGSTOP)
        yield
    finally:
        for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            one.kill()
        process.wait()


def until_it_hangs(folder: Path, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        last = [float(rows["time"][-1]) for rank in folder.glob("runs/*/rank-*") if len((rows := _steps(rank))["time"])]
        if last and time.time() - max(last) > STUCK_FOR:
            return
        time.sleep(0.1)
    raise SystemExit("the victim did not come to hang")


def _steps(rank: Path) -> dict[str, object]:
    return last_rows(rank, "steps", ("time",), 1)  # type: ignore[return-value]


def asked(folder: Path, victim: str, times: int) -> list[float]:
    """Milliseconds of each time."""
    took = []
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    for _ in range(times):
        started = time.perf_counter()
        words = [*HOLDFAST, "backtrace", "--json"]
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        took.append((time.perf_counter() - started) * 1e3)
        said = json.loads(done.stdout)["verdict"]
        if said["evidence"].get("kind") != KINDS[victim]:
            raise SystemExit(f"{victim}: it says {said['say']!r}")
    return took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three times each instead of seven")
    times = 3 if parser.parse_args().quick else 7
    print(f"{platform.machine()} {platform.system()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    victims = {**ALONE, "a stopped process": "stopped", "a hung loader worker": "loader", "a missing rank (2 of gloo)": "ranks"}
    missed = 0
    for name, victim in victims.items():
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder, hanging(victim, Path(folder)):
            took = asked(Path(folder), victim, times)
        measured = Measured(what=f"{name}, median", value=statistics.median(took), unit="ms", at_most=AT_MOST)
        print(f"{measured}   ({min(took):,.0f} to {max(took):,.0f})", flush=True)
        missed += measured.missed
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
