"""Random faults put into small trainings under `holdfast run --policy heal`: does every one of them end as it would have without?

    make bench-survive                       200 faults, about half an hour
    make bench-survive ARGS="--count 20"

A run has survived if it ends with code 0, with the same number of steps as without a fault, and with a metric within noise: the
spread that three other random seeds have is far larger than the bar of 20 %; most end bit for bit the same.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

TRAINING = str(Path(__file__).with_name("survive_training.py"))
KINDS = ("resumes", "plain", "watched")
FAULTS = ("hang", "kill", "worker-kill", "worker-hang", "stop", "exception", "disk-full")
STEPS, NOISE = 150, 0.2
QUICK = {"HOLDFAST_BACK_OFF": "0.2", "HOLDFAST_SAVE_EVERY": "0.3"}
_SECONDS = 240.0


@dataclass(frozen=True)
class Outcome:
    """How one run ended."""

    kind: str
    fault: str
    at: int
    code: int
    steps: int | None
    metric: float | None
    restarts: int
    seconds: float
    said: str = ""

    def survived(self, usual: float) -> bool:
        """Whether it ended as it would have without the fault."""
        near = self.metric is not None and abs(self.metric - usual) <= NOISE * usual
        return self.code == 0 and self.steps == STEPS and near


def environment() -> dict[str, str]:
    """This one without what an outer run has put there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return {**kept, **QUICK}


def train(kind: str, fault: str, at: int, hang_after: float) -> Outcome:
    """One training under Holdfast, in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-survive-"))
    words = [
        sys.executable,
        "-m",
        "holdfast.cli.main",
        "run",
        "--policy",
        "heal",
        "--name",
        "a",
        "--hang-after",
        f"{hang_after:g}",
    ]
    words += ["--resume-args", "--resume {checkpoint}"] if kind == "resumes" else []
    begun = time.monotonic()
    try:
        done = subprocess.run(
            [*words, "--", sys.executable, TRAINING, kind, fault, str(at)],
            cwd=folder, env=environment(), capture_output=True, text=True, timeout=_SECONDS, check=False,
        )  # fmt: skip
        code, out, said = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        code, out, said = -1, "", "it took too long"
    steps, metric = _end(out)
    journal = folder / "runs/a/journal.jsonl"
    restarts = journal.read_text().count('"action": "restart"') if journal.exists() else 0
    if code == 0:
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(kind, fault, at, code, steps, metric, restarts, time.monotonic() - begun, f"{folder}\n{said}")


def _end(out: str) -> tuple[int | None, float | None]:
    for line in reversed(out.splitlines()):
        words = line.split()
        if len(words) == 3 and words[0] == "end":
            return int(words[1]), float(words[2])
    return None, None


def faults(count: int, seed: int, kinds: tuple[str, ...]) -> list[tuple[str, str, int]]:
    """Which fault comes when: each kind and fault about equally often, in a random order, at a random step."""
    chosen = random.Random(seed)
    every = [(kind, fault) for kind in kinds for fault in FAULTS]
    drawn: list[tuple[str, str]] = []
    while len(drawn) < count:
        drawn += chosen.sample(every, len(every))
    return [(kind, fault, chosen.randrange(5, STEPS - 5)) for kind, fault in drawn[:count]]


def table(outcomes: list[Outcome], usual: dict[str, float]) -> Iterator[str]:
    """A row for each kind and fault."""
    yield f"{'training':<10}{'fault':<13}{'runs':>5}{'survived':>10}{'same bits':>11}{'restarts':>10}{'seconds':>9}"
    for kind in KINDS:
        for fault in FAULTS:
            those = [one for one in outcomes if (one.kind, one.fault) == (kind, fault)]
            if those:
                yield _row(kind, fault, those, usual[kind])
    yield _total(outcomes, usual)


def _row(kind: str, fault: str, those: list[Outcome], usual: float) -> str:
    good, same = sum(one.survived(usual) for one in those), sum(one.metric == usual for one in those)
    seconds = statistics.median(one.seconds for one in those)
    restarts = sum(one.restarts for one in those) / len(those)
    return f"{kind:<10}{fault:<13}{len(those):>5}{good:>10}{same:>11}{restarts:>10.1f}{seconds:>9.1f}"


def _total(outcomes: list[Outcome], usual: dict[str, float]) -> str:
    good = sum(one.survived(usual[one.kind]) for one in outcomes)
    same = sum(one.metric == usual[one.kind] for one in outcomes)
    return f"{'all':<23}{len(outcomes):>5}{good:>10}{same:>11}"


def main() -> int:
    """Run them, print the table; 1 if a run did not survive."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--hang-after", type=float, default=3.0)
    given = parser.parse_args()
    kinds = (given.only,) if given.only else KINDS
    usual: dict[str, float] = {}
    for kind in kinds:
        alone = train(kind, "none", 0, given.hang_after)
        if alone.metric is None or alone.restarts:
            print(f"the training {kind} does not work without a fault:\n{alone.said}")
            return 1
        usual[kind] = alone.metric
    planned, outcomes = faults(given.count, given.seed, kinds), []
    with ThreadPoolExecutor(given.jobs) as pool:
        for number, one in enumerate(pool.map(lambda what: train(*what, given.hang_after), planned), 1):
            outcomes.append(one)
            well = one.survived(usual[one.kind])
            print(f"{number:>4} {one.kind:<9}{one.fault:<12} at {one.at:>3}: {'survived' if well else 'LOST'}", flush=True)
            if not well:
                print(
                    f"     code {one.code}, steps {one.steps}, metric {one.metric} (usual {usual[one.kind]})\n{one.said}",
                    flush=True,
                )
    print("\n".join(table(outcomes, usual)))
    return 0 if all(one.survived(usual[one.kind]) for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
