"""What `--policy heal` repairs: small real trainings with an injected fault, with and without Holdfast, from the same seeds.

Each training runs without the fault, with it, and with it under `holdfast run --policy heal`. The last must come within
2 % of the first in its validation metric, and the second must not. Fails where a bar is missed.

    python benchmarks/heal.py [--only nan-batch/digits_mlp] [--seed 0] [--jobs 1] [--json] [--write]
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from heal_trainings.trial import LEAVES_ALONE, Trial, run, write_between
from machine import machine, today
from rich.console import Console
from rich.table import Table

PAGE = Path(__file__).parents[1] / "docs/scoreboard.md"
BAR = 0.02
RECOVERS = "spike-that-recovers"
COMBINATIONS = (
    "nan-batch/digits_mlp",
    "nan-batch/rnn_rows",
    "inf-pixel/digits_cnn",
    "inf-pixel/rnn_rows",
    "label-out-of-range/digits_mlp",
    "label-out-of-range/char_transformer",
    "lr-x100/digits_mlp",
    "lr-x100/rnn_rows",
    "lr-x100/char_transformer",
    "lr-x100-kept/digits_mlp",
    "lr-x100-kept/rnn_rows",
    "corrupted-weight/digits_mlp",
    "corrupted-weight/digits_cnn",
    "corrupted-weight/char_transformer",
    "corrupted-weight/rnn_rows",
    "exploding-rnn/rnn_rows",
    "fp16-overflow/digits_cnn",
    "fp16-overflow/char_transformer",
    "spike-that-recovers/digits_mlp",
    "spike-that-recovers/char_transformer",
)
COLUMNS = ("fault", "training", "metric", "clean", "broken", "healed", "worse by", "actions", "steps lost", "seconds", "verdict")


@dataclass
class Result:
    """One fault in one training, three ways."""

    fault: str
    training: str
    metric: str
    clean: float
    broken: float
    healed: float
    actions: str
    steps_lost: int
    seconds_clean: float
    seconds_healed: float
    verdict: str

    def cells(self) -> list[str]:
        """The row of the table."""
        worse = worse_by(self.metric, self.clean, self.healed)
        return [
            self.fault, self.training, self.metric, f"{self.clean:.4f}", f"{self.broken:.4f}", f"{self.healed:.4f}",
            f"{100 * worse:+.2f} %", self.actions or "none", str(self.steps_lost),
            f"{self.seconds_clean:.0f} / {self.seconds_healed:.0f}", self.verdict,
        ]  # fmt: skip


def worse_by(metric: str, clean: float, other: float) -> float:
    """How much worse than the clean run, as a share of it; what is not a number is as bad as can be."""
    if not math.isfinite(other):
        return math.inf
    return (other - clean) / clean if metric == "loss" else (clean - other) / clean


def judge(fault: str, metric: str, clean: float, broken: float, trial: Trial) -> str:
    """`ok`, or which bar was missed."""
    missed = []
    if worse_by(metric, clean, trial.said.get(metric, math.nan)) > BAR:
        missed.append("not healed")
    harmed = worse_by(metric, clean, broken) > BAR
    changed = [action["action"] for action in trial.actions if action["action"] not in LEAVES_ALONE]
    if fault == RECOVERS and changed:
        missed.append("not left alone")
    if harmed == (fault == RECOVERS):
        missed.append("harms by itself" if harmed else "does no harm")
    return f"MISSED: {', '.join(missed)}" if missed else "ok"


def try_out(combination: str, seed: str, clean_runs: Mapping[str, Trial]) -> tuple[Result, Trial]:
    """Run one combination; clean runs are shared by all faults of a training."""
    fault, training = combination.split("/")
    script = f"heal_trainings/{training}.py"
    clean, broken = clean_runs[training], run(script, FAULT=fault, SEED=seed)
    healed = run(script, policy="heal", FAULT=fault, SEED=seed)
    metric = next(iter(clean.said))
    values = [trial.said.get(metric, math.nan) for trial in (clean, broken, healed)]
    verdict = judge(fault, metric, values[0], values[1], healed)
    actions, lost = healed.in_words(), healed.steps_lost
    return Result(fault, training, metric, *values, actions, lost, clean.seconds, healed.seconds, verdict), healed


def as_table(results: list[Result]) -> Table:
    """What the terminal shows."""
    table = Table(*COLUMNS)
    for result in results:
        table.add_row(*result.cells(), style=None if result.verdict == "ok" else "bold red")
    return table


def as_markdown(results: list[Result], jobs: int) -> str:
    """What the page shows."""
    shown = [column for column in COLUMNS if column not in ("metric", "seconds")]
    cells = [dict(zip(COLUMNS, result.cells(), strict=True)) for result in results]
    rows = [shown, ["---"] * len(shown), *([row[column] for column in shown] for row in cells)]
    return f"Measured on {today()}; {machine(jobs)}.\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> int:
    """Run all combinations, or the ones named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="FAULT/TRAINING, FAULT/ or /TRAINING; may be given several times")
    parser.add_argument("--seed", default="0", help="the seed of all runs")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; each wants two cores")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line instead of a table")
    parser.add_argument("--write", action="store_true", help="put the table into docs/scoreboard.md")
    arguments = parser.parse_args()
    chosen = [c for c in COMBINATIONS if not arguments.only or any(part in c for part in arguments.only)]
    words, results = Console(stderr=True), []
    trainings = list(dict.fromkeys(combination.split("/")[1] for combination in chosen))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        clean = pool.map(lambda training: run(f"heal_trainings/{training}.py", SEED=arguments.seed), trainings)
        clean_runs = dict(zip(trainings, clean, strict=True))
        for result, trial in pool.map(lambda combination: try_out(combination, arguments.seed, clean_runs), chosen):
            results.append(result)
            words.print(f"{result.fault}/{result.training}: {result.verdict}", highlight=False)
            if arguments.json:
                row = {**asdict(result), "exit_code": trial.exit_code, "journal": trial.journal}
                print(json.dumps(row, default=str), flush=True)
    if not arguments.json:
        Console(width=None if Console().is_terminal else 200).print(as_table(results))
    if arguments.write:
        write_between(PAGE, "healed", as_markdown(results, arguments.jobs))
    return 1 if any(result.verdict != "ok" for result in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
