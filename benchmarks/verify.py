"""How fast a checkpoint is verified, and in how much memory: `.venv/bin/python benchmarks/verify.py [--gigabytes 10]`.

Compared with reading the same bytes once, and with the usual script: `torch.load` to the CPU, then `isnan(v).any()` for each
tensor. Verifying does more: it compares every byte with its checksum, and finds Inf too. Each measurement is a process of its
own, as each of these is when somebody does it; what it takes to start Python and import things is left out everywhere. The file
is in the page cache, and the measurements take turns.
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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

TIMES_USUAL, SHARE_OF_READING, RESIDENT = 5.0, 0.5, 1e9
WAYS = ("read", "usual", "verify")
WORDS = {
    "read": "reading it once (1 MB at a time)",
    "usual": "torch.load, then isnan(v).any()",
    "verify": "holdfast: checksums, NaN and Inf",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement: speed, once more in the same process, and the memory that it had before and at most."""

    seconds: float
    again: float
    before: float
    peak: float


# --- what runs in a process of its own


def once(way: str, path: Path) -> Measured:
    """Do it once, and once more: what the first time has to ask the system for, the second time is there."""
    work = {"read": read, "usual": usual, "verify": prepare_verify}[way](path)
    before, times = resident("VmRSS"), []
    for _ in range(2):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return Measured(times[0], times[1], before, resident("VmHWM"))


def read(path: Path) -> Callable[[], None]:
    buffer = memoryview(bytearray(1 << 20))

    def work() -> None:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    return work


def usual(path: Path) -> Callable[[], None]:
    import torch

    def work() -> None:
        state = torch.load(path, map_location="cpu", weights_only=True)
        bad = [name for name, value in state.items() if torch.isnan(value).any()]
        assert not bad

    return work


def prepare_verify(path: Path) -> Callable[[], None]:
    from isal.isal_zlib import crc32

    from holdfast.checkpoints.formats.open import open_checkpoint
    from holdfast.checkpoints.formats.zip_file import open_zip  # noqa: F401 - imported now, not while the clock runs
    from holdfast.checkpoints.verify import verify

    def work() -> None:
        verdict = verify(open_checkpoint(path), crc32=crc32)
        assert verdict.state == "clean" and verdict.checked, verdict

    return work


def resident(what: str) -> float:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(what):
            return 1024.0 * int(line.split()[1])
    return 0.0


# --- what asks for it


def make_file(path: Path, gigabytes: float, dtype: str) -> None:
    """A checkpoint of layers as a transformer has them."""
    import torch

    kind = getattr(torch, dtype)
    state, left, layer = {}, gigabytes * 1e9, 0
    torch.manual_seed(0)
    block = torch.randn(4096 * 4096).to(kind)
    while left > 0:
        for name, shape in (("attention", (2048, 6144)), ("up", (8192, 2048)), ("down", (2048, 8192)), ("norm", (2048,))):
            tensor = block[: shape[0] * (shape[1] if len(shape) > 1 else 1)].clone().view(shape)
            state[f"layers.{layer}.{name}.weight"] = tensor
            left -= tensor.numel() * tensor.element_size()
        layer += 1
    torch.save(state, path)


def measure(path: Path, ways: tuple[str, ...], rounds: int) -> dict[str, list[Measured]]:
    """Each way in its turn, so that all of them meet the same disturbances."""
    measured: dict[str, list[Measured]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way in ways:
            command = [sys.executable, __file__, "--once", way, str(path)]
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
            if answer.returncode:
                raise SystemExit(f"{way} failed:\n{answer.stderr}")
            if number:  # the first round only fills the page cache
                measured[way].append(Measured(**json.loads(answer.stdout)))
    return measured


def report(path: Path, measured: dict[str, list[Measured]], what: str) -> bool:
    """Print one file's numbers; whether no bar was missed."""
    size = path.stat().st_size
    speeds = {way: size / statistics.median(one.seconds for one in all_of) / 1e9 for way, all_of in measured.items()}
    again = {way: size / statistics.median(one.again for one in all_of) / 1e9 for way, all_of in measured.items()}
    print(f"{size / 1e9:.1f} GB of {what}, page cache warm, median of {len(measured['verify'])}")
    for way, speed in speeds.items():
        each = " ".join(f"{size / one.seconds / 1e9:.1f}" for one in measured[way])
        print(f"  {WORDS[way]:<36}{speed:7.2f} GB/s   ({each}); once more in the same process {again[way]:.2f}")
    peak = max(one.peak for one in measured["verify"])
    more = max(one.peak - one.before for one in measured["verify"])
    good = bar("of the speed of reading", speeds["verify"] / speeds["read"], SHARE_OF_READING)
    if "usual" in speeds:
        good &= bar("times the usual script", speeds["verify"] / speeds["usual"], TIMES_USUAL)
    below = peak < RESIDENT
    print(f"  peak resident memory {peak / 1e6:.0f} MB, {more / 1e6:.0f} MB of it for the work: {'ok' if below else 'MISSED'}")
    return good and below


def bar(what: str, value: float, least: float) -> bool:
    print(f"  {value:.2f} {what}, at least {least:g}: {'ok' if value >= least else 'MISSED'}")
    return value >= least


def available() -> float:
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable"):
            return 1024.0 * int(line.split()[1])
    return 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the file is written; a temporary folder without it")
    parser.add_argument("--once", nargs=2, metavar=("WAY", "FILE"), help=argparse.SUPPRESS)
    parser.add_argument("--write", nargs=3, metavar=("FILE", "SIZE", "DTYPE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        make_file(Path(arguments.write[0]), float(arguments.write[1]), arguments.write[2])
        return 0
    if arguments.once:
        done = once(arguments.once[0], Path(arguments.once[1]))
        print(json.dumps(asdict(done)))
        return 0
    print(f"{platform.machine()} {platform.system()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    good = True
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=arguments.folder) as name:
        for dtype, gigabytes in (("float32", arguments.gigabytes), ("bfloat16", min(arguments.gigabytes, 2.0))):
            path = Path(name) / f"{dtype}.pt"
            command = [sys.executable, __file__, "--write", str(path), str(gigabytes), dtype]  # its memory is gone with it
            subprocess.run(command, check=True)
            ways = WAYS
            if available() < 2.2e9 * gigabytes:
                print(f"too little memory to load {gigabytes:g} GB beside the page cache: the usual script is left out")
                ways = ("read", "verify")
            good &= report(path, measure(path, ways, arguments.rounds), dtype)
            path.unlink()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
