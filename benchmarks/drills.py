"""The house course: all faults over all trainings of `drill_trainings`, and healthy runs beside them; writes docs/scoreboard.md.

    make drills                                                    three seeds, `observe` and `heal`: an hour on 16 cores
    make drills ARGS="--only-fault nan-batch --seeds 1"            a part; the page is not written
    make drills ARGS="--json rows.jsonl --time-limit 500"          as far as it gets, and then
    make drills ARGS="--json rows.jsonl --resume-from rows.jsonl"  continues

Fails where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).parent / "drill_trainings"))
from house import Stretch, every_training, healthy, in_chunks, stretches, training
from machine import machine, today
from scoreboard import STRANGERS, Course, Row, key_of, page, worse_by

PAGE = Path(__file__).parents[1] / "docs/scoreboard.md"
POLICIES = ("observe", "heal")
SLOW = ("hugging_face", "two_ranks", "lightning")  # begun first: the last to end should not be the longest
_LINES = 15
_TO_END = 30.0  # seconds for what runs to end


# One stretch, in a process of its own


def run_stretch(stretch: Stretch, folder: Path) -> None:
    """Run it, and print a row for each result as it comes."""
    from holdfast.drills.suite import Result, run_suite

    def tell(result: Result) -> None:
        print(json.dumps(as_row(result), default=str), flush=True)

    run_suite(
        [training(stretch.training)], stretch.codes, policies=[stretch.policy], seeds=[stretch.seed], folder=folder,
        on_result=tell, keep=True,
    )  # fmt: skip


def as_row(result: Any) -> Row:
    """A result with its kind; of one that went wrong also how it ended, and what it raised. The others are removed."""
    from holdfast.drills.score import ControlScore
    from holdfast.drills.suite import SkippedFault

    if isinstance(result, SkippedFault):
        return {"kind": "skipped", "training": result.training, "fault": result.fault, "why": result.why}
    kind = "control" if isinstance(result, ControlScore) else "fault"
    row = {"kind": kind, **result.as_row()}
    run = Path(row.pop("run", None) or "")
    bad = bool(row["false_alarms"]) if kind == "control" else not result.good or (row["seen"] and not row["cause_right"])
    if not run.name or not run.exists():
        return row
    if bad:
        return {**row, "more": _more(run)}
    shutil.rmtree(run.parent, ignore_errors=True)
    return row


def _more(run: Path) -> dict[str, Any]:
    """What somebody who mends it would look at first."""
    from holdfast.signals.run_folder import RunFolder

    names = ("kind", "code", "severity", "action", "state", "step", "evidence", "because", "settings", "event", "cause", "causes")
    journal = [{name: row[name] for name in names if row.get(name) is not None} for row in RunFolder.open(run).journal]
    output = run.parent / "output.txt"
    lines = output.read_text(errors="replace").splitlines()[-_LINES:] if output.exists() else []
    return {"journal": journal[:60], "output": lines}


# All of them


class Runner:
    """Runs stretches side by side until all are done or the time is over, and keeps every row."""

    def __init__(self, folder: Path, until: float, into: TextIO | None) -> None:
        self.rows: list[Row] = []
        self._folder, self._until, self._into = folder, until, into
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._running: dict[int, subprocess.Popen[str]] = {}
        self.over = threading.Event()

    def run(self, waiting: list[Stretch], jobs: int) -> None:
        """All of them; when the time is over, what runs is ended."""
        queue = iter(waiting)
        threads = [threading.Thread(target=self._work, args=(queue,), daemon=True) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads) and time.monotonic() < self._until:
                time.sleep(0.2)
        except KeyboardInterrupt:
            print("ended by Ctrl-C", file=sys.stderr)
        self.over.set()
        for process in list(self._running.values()):
            process.send_signal(signal.SIGINT)
        last = time.monotonic() + _TO_END
        for thread in threads:
            thread.join(max(0.0, last - time.monotonic()))

    def _work(self, queue: Iterator[Stretch]) -> None:
        while not self.over.is_set():
            with self._lock:
                stretch = next(queue, None)
            if stretch is None:
                return
            self._run_one(stretch, Path(tempfile.mkdtemp(prefix="stretch-", dir=self._folder)))

    def _run_one(self, stretch: Stretch, folder: Path) -> None:
        command = [sys.executable, __file__, "--stretch", json.dumps(stretch.as_row()), "--folder", str(folder)]
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
            self._running[process.pid] = process
            assert process.stdout is not None
            for line in process.stdout:
                self.keep(json.loads(line))
            code = process.wait()
            del self._running[process.pid]
            if code and not self.over.is_set():
                errors.seek(0)
                self.keep({"kind": "failed", **stretch.as_row(), "why": " / ".join(errors.read().splitlines()[-4:])})

    def keep(self, row: Row) -> None:
        """Keep a row, at once also in the file."""
        with self._lock:
            self.rows.append(row)
            if self._into is not None:
                self._into.write(json.dumps(row) + "\n")
                self._into.flush()
            print(f"{len(self.rows) - 1:>5} {in_words(row)}", flush=True)


def in_words(row: Row) -> str:
    """One line of what came out."""
    if row["kind"] == "machine":
        return str(row["machine"])
    start = f"{row['training']:<22} {row.get('policy') or '':<8}{row.get('seed', ''):<3}"
    if row["kind"] == "skipped":
        return f"{start}{row['fault']:<22} skipped: {row['why']}"
    if row["kind"] == "failed":
        return f"{start}NO RUN: {row['why']}"
    if row["kind"] == "control":
        metric = f"{row['metric_name']} {row['metric']:.4f}" if isinstance(row["metric"], float) else ""
        return f"{start}{'healthy':<22} {row['seconds']:.0f} s, {metric} {' '.join(row['false_alarms'])}"
    if not row["injected"]:
        return f"{start}{row['fault']:<22} not injected: {row['why_not']}"
    wrong = row["to_explain"] and not row["cause_right"]
    cause = f", {row['cause'] or 'no cause'}{' (WRONG)' if wrong else ''}" if row["seen"] else ""
    said = f"{row['seen'] or ('NOT SEEN' if row['to_see'] else 'nothing to see')}{cause}"
    if row["to_survive"]:
        worse = worse_by(row)
        lost = f"{worse:+.1f} %, {row['lost_seconds']:.0f} s" if worse is not None else f"{row['lost_seconds']:.0f} s"
        said += f"; survived ({lost})" if row["survived"] else f"; LOST: {row['why_not_survived']}"
    return f"{start}{row['fault']:<22} {said}"


def remaining(planned: Iterable[Stretch], rows: Iterable[Row]) -> list[Stretch]:
    """What is not done yet: seed by seed, so that a course cut short has something of everything, slow trainings first."""
    done = {key_of(row) for row in rows if row["kind"] != "machine"}
    left = []
    for stretch in planned:
        same = {"training": stretch.training, "policy": stretch.policy, "seed": stretch.seed}
        if not stretch.codes and key_of({"kind": "control", **same}) in done:
            continue
        codes = tuple(
            code for code in stretch.codes
            if key_of({"kind": "fault", "fault": code, **same}) not in done
            and key_of({"kind": "skipped", "fault": code, "training": stretch.training}) not in done
        )  # fmt: skip
        if codes or not stretch.codes:
            left.append(Stretch(stretch.training, stretch.policy, stretch.seed, codes))
    return sorted(left, key=lambda one: (one.seed, not one.training.startswith(SLOW)))


def read_rows(path: Path | None) -> list[Row]:
    """The rows of an earlier part of the course; a last line that was cut off is skipped."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else ():
        try:
            rows.append(json.loads(line.replace('"put_in"', '"injected"').replace('"left-out"', '"skipped"')))  # older names
        except ValueError:
            continue
    return rows


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="runs at a time")
    parser.add_argument("--only-training", action="append", default=[], help="may be given several times")
    parser.add_argument("--only-fault", action="append", default=[], help="may be given several times")
    parser.add_argument("--only-policy", choices=POLICIES, help="one of the two")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--no-healthy", action="store_true", help="without the healthy runs beside the course")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a JSON object for each result")
    parser.add_argument("--resume-from", type=Path, metavar="FILE", help="do not run again what this file has")
    parser.add_argument(
        "--time-limit", type=float, default=float("inf"), metavar="SECONDS", help="end then, and say what is left"
    )
    parser.add_argument("--folder", type=Path, help="keep runs that went wrong here")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help=f"the page; without it, a whole course writes docs/{PAGE.name}"
    )
    parser.add_argument("--stretch", help=argparse.SUPPRESS)
    return parser.parse_args()


def plan(given: argparse.Namespace) -> list[Stretch]:
    """All stretches that were asked for."""
    import torch

    names = given.only_training or every_training(gpu=torch.cuda.is_available())
    policies = (given.only_policy,) if given.only_policy else POLICIES
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    planned = list(stretches(names, policies, seeds, given.only_fault))
    if not given.no_healthy and not given.only_fault:
        planned += healthy(names, seeds, zoo=not given.only_training)
    return planned


def main() -> int:
    """Run what was asked for; 1 if a bar is missed."""
    given = options()
    if given.stretch:
        stretch = json.loads(given.stretch)
        run_stretch(Stretch(**{**stretch, "codes": tuple(stretch["codes"])}), given.folder)
        return 0
    begun = time.monotonic()
    before = read_rows(given.resume_from)
    planned = plan(given)
    waiting = [piece for stretch in remaining(planned, before) for piece in (in_chunks(stretch) if stretch.codes else (stretch,))]
    kept = given.json.open("a", encoding="utf-8") if given.json else nullcontext()
    with tempfile.TemporaryDirectory(prefix="holdfast-drills-") as temporary, kept as into:
        runner = Runner(given.folder or Path(temporary), begun + given.time_limit, into)
        if waiting:
            runner.keep({"kind": "machine", "machine": machine(given.jobs), "date": today()})
        runner.run(waiting, given.jobs)
    rows = [*before, *runner.rows]
    left = sum(len(stretch.codes) or 1 for stretch in remaining(planned, rows))
    return report(rows, left, given, time.monotonic() - begun)


def out_of_reach(rows: list[Row]) -> Iterator[Row]:
    """Faults that none of the trainings of this machine is given, and none of `rows` from another has."""
    import torch

    from holdfast.drills import faults

    given = {row.get("fault") for row in rows}
    for code in faults.every() if not torch.cuda.is_available() else ():
        if "gpu" in faults.find(code).needs and code not in given:
            yield {"kind": "skipped", "training": "", "fault": code, "why": "needs a GPU, and the machine has none"}


def report(rows: list[Row], left: int, given: argparse.Namespace, seconds: float) -> int:
    """Print the bars, write the page."""
    whole = not (given.only_training or given.only_fault or given.only_policy)
    where = given.write or (PAGE if whole else None)
    if where is not None:
        before = where.read_text(encoding="utf-8") if where.exists() else ""
        kept = before[before.find(STRANGERS) :] if STRANGERS in before else ""
        written = page([*rows, *out_of_reach(rows)], left)
        where.write_text(f"{written}\n{kept}" if kept else written, encoding="utf-8")
        print(f"written: {where.name}")
    bars = Course(rows).bars()
    for bar in bars:
        print(f"{'ok    ' if bar.ok else 'MISSED'}  {bar.what}: {bar.measured}")
    print(f"{sum(row['kind'] != 'machine' for row in rows)} results, {left} runs skipped for lack of time, {seconds:.0f} s")
    return 0 if all(bar.ok for bar in bars) and not left else 1


if __name__ == "__main__":
    raise SystemExit(main())
