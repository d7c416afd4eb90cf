"""Judgement on trainings that nobody has seen: small ones drawn at random, healthy or with a fault of the drills, a seed each.

    python benchmarks/population.py --count 1000 --jobs 20 --json population.jsonl     minutes on 16 cores; resumes where it ended
    python benchmarks/population.py --count 0 --json population.jsonl --calibrate      count how often causes were right
    python benchmarks/population.py --from 42 --count 1 --folder here                  one of them, kept to be looked at
    python benchmarks/population.py --from 7000 --count 900 --healthy --json more.jsonl    all healthy: how often one is alarmed

Even seeds are for building: their misses are named. Odd seeds are only scored. A healthy training counts only if its own states
show that it learned: at its end the held-out loss is clearly below the first one and below that of a constant answer, and no
state before was clearly better. Half of the seeds get a fault, each the next one, in the first draw that can have it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import machine, today
from population_training import POINTS, Draw, data, draw, has, loss_of, network

from holdfast.diagnosis import confidence
from holdfast.diagnosis.confidence import LIKELY, POSSIBLE, stated
from holdfast.drills import faults
from holdfast.drills.score import score
from holdfast.drills.selection import At, plan_fault
from holdfast.drills.trial import Training, run_trial

Row = dict[str, Any]
FAMILIES = {
    "numbers": "nan-batch inf-pixel nan-gradient fp16-overflow loss-spike corrupted-weight recurrent-explosion",
    "learning rate": "lr-x100 scheduler-bug lr-div-1000",
    "learning": "constant-inputs dead-relu frozen-parameters stale-optimizer vanishing",
    "data": "label-out-of-range shuffled-labels unshuffled duplicated-split normalisation-dropped",
    "memory and speed": "memory-leak predictions-collected host-oom slow-loader slow-worker",
    "files and ends": "process-killed checkpoint-bit-flip checkpoint-nan-best checkpoint-truncated disk-full",
    "hangs": "deadlock infinite-loop lock-held-in-c worker-hung worker-killed process-stopped",
}
SHOWN_BY_STATES = ("numbers", "learning rate")  # families whose harm shows in the training's own states
FAMILY = {code: family for family, codes in FAMILIES.items() for code in codes.split()}
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HOLDFAST_SAVE_EVERY": "0.3"}
ROSE, WAITED, LEAKED = 1.04, 0.2, 0.2  # held-out loss since its best, of the time, of held-out samples: then it may be said
CLEARLY, BAR = 0.8, {"likely": LIKELY, "possible": POSSIBLE}
SECONDS = 150.0
CALIBRATION, EDGES = (
    Path(confidence.__file__).with_name("calibration.py"),
    (0.0, 0.35, 0.75, 9.0),
)


def fault_of(seed: int) -> str:
    """None for half of the seeds, even and odd ones alike."""
    return "" if seed % 4 < 2 else list(FAMILY)[seed // 4 % len(FAMILY)]


def drawn_for(seed: int, code: str) -> Draw:
    """The training of a seed; for a fault, one that can have it."""
    needs = set(faults.find(code).needs) if code else set()
    return next(one for place in range(100_000) if needs <= has(one := draw(seed + 1_000_000 * place)))


def run_one(seed: int, kept: Path | None, healthy: bool) -> Row:
    """One training under `holdfast run --policy observe`, and what it came to."""
    torch.set_num_threads(1)
    code = "" if healthy else fault_of(seed)
    one = drawn_for(seed, code)
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{seed}-", dir=kept))
    script = Path(__file__).with_name("population_training.py")
    training = Training(
        command=(sys.executable, str(script), str(one.seed)), name=one.task, environment=ENVIRONMENT, hang_after="4"
    )
    row: Row = {"seed": seed, "half": "score" if seed % 2 else "build", "fault": code, "draw": vars(one)}
    plan = tuple(plan_fault(code, "", one.seed, one.steps, At())) if code else ()
    try:
        trial = run_trial(training, plan, policy="observe", seed=one.seed, folder=folder / "trial", seconds=SECONDS)
        row |= {"exit": trial.exit_code, "seconds": round(trial.seconds, 1), "steps": trial.steps, "ended": trial.ended}
        row["raised"] = [[raised.code, raised.severity] for raised in trial.outcome.raised]
        row |= learned(one, folder / "trial/work/states.npz")
        if not code:
            return row
        found = score(trial, trial)
        seen = next((raised for raised in trial.outcome.raised if raised.code == found.seen), None)
        row |= {"injected": found.injected, "why_not": found.why_not, "to_see": found.to_see, "unexpected": found.unexpected}
        row |= {"seen": found.seen, "causes": [] if seen is None else seen.causes, "right": faults.find(code).expected.causes}
        return row
    finally:
        if kept is None:
            shutil.rmtree(folder, ignore_errors=True)


@torch.no_grad()
def learned(one: Draw, states: Path) -> Row:
    """Whether the held-out loss says that it learned; nothing of Holdfast is asked."""
    if not states.exists():
        return {"healthy": False, "losses": []}
    made, kept, losses = data(one), dict(np.load(states)), []
    x, y = made.held_out
    for point in range(POINTS):
        model = network(one, made).eval()
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            value.copy_(torch.from_numpy(kept[f"{point} {name}"]))
        losses.append(float(loss_of(made.kind, model(x.float() if x.is_floating_point() else x), y)))
    evaluated, (x, _) = kept["evaluated"].tolist(), made.held_out
    learned_from = {row.tobytes() for row in made.inputs.numpy()}
    true = {
        "overfitting": max(rise(losses), rise(evaluated)) > ROSE,
        "metric-decline": rise(evaluated) > ROSE,
        "split-leak": sum(row.tobytes() in learned_from for row in x.numpy()) > LEAKED * len(x),
        "slow-loading": float(kept["waited"]) > WAITED,
    }
    limit, past_its_best = CLEARLY * min(losses[0], constant_answer(made, y)), min(losses) + 0.05 * losses[0]
    healthy = all(map(math.isfinite, losses)) and losses[-1] < min(limit, past_its_best)
    return {"healthy": healthy, "losses": [round(loss, 4) for loss in losses], "true": [code for code in true if true[code]]}


def rise(losses: list[float]) -> float:
    """How many times as large as its best a held-out loss is at the end: the mean of the last two, if there are some."""
    return sum(losses[-2:]) / 2 / min(losses) if len(losses) > 4 and min(losses) > 0.0 else 1.0


def constant_answer(made: Draw, y: torch.Tensor) -> float:
    """The loss of somebody who knows only how often each answer comes."""
    if made.kind == "numbers":
        return float((y - made.targets.mean(0)).square().mean())
    if made.kind == "flags":
        return float(loss_of("flags", torch.logit(made.targets.mean(0), 1e-3).expand_as(y), y))
    counts = torch.bincount(made.targets.flatten(), minlength=made.out) + 1.0
    return float(loss_of("classes", counts.log().expand(*y.shape, -1), y))


# The report


def interval(count: int, whole: int) -> str:
    """A share with its 95 % interval after Wilson."""
    if not whole:
        return "none"
    z, p = 1.96, count / whole
    middle, wide = p + z * z / (2 * whole), z * math.sqrt(p * (1 - p) / whole + z * z / (4 * whole * whole))
    low, high = ((middle + sign * wide) / (1 + z * z / whole) for sign in (-1, 1))
    return f"{count:3d} of {whole:3d}  {100 * p:5.1f} %  ({100 * max(0.0, low):.0f} to {100 * min(1.0, high):.0f})"


def alarms(row: Row) -> list[str]:
    """What was raised above info and is not true of a healthy training, by its own states, evaluations, samples and clock.

    Computing on the CPU is true of all, since GPUs are hidden.
    """
    true = {"computing-on-cpu", *row.get("true", ())}
    return sorted({code for code, severity in row["raised"] if severity != "info"} - true)


def there(row: Row) -> bool:
    return bool(row["fault"] and row["injected"] and row["to_see"])


def did_not_learn(row: Row) -> bool:
    """Whether a training with a fault of numbers did not learn; a learning rate x 100 often makes a short one better."""
    return there(row) and FAMILY[row["fault"]] in SHOWN_BY_STATES and row.get("healthy") is False


def right(row: Row, place: int = 0) -> bool:
    return len(row["causes"]) > place and row["causes"][place][0] in row["right"]


def report(rows: list[Row], half: str) -> bool:
    """The numbers of one half; whether each word that was said of a cause is kept."""
    mine = [row for row in rows if row["half"] == half]
    healthy = [row for row in mine if not row["fault"] and row["healthy"]]
    left_out = sum(not row["fault"] and not row["healthy"] for row in mine)
    print(f"\n== {half}: {len(mine)} trainings; {left_out} without a fault did not learn, and do not count")
    for task in ("all", *sorted({row["draw"]["task"] for row in healthy})):
        of_task = [bool(alarms(row)) for row in healthy if task in ("all", row["draw"]["task"])]
        print(f"false alarms, {task:20s} {interval(sum(of_task), len(of_task))}")
    for family in ("all", *FAMILIES):
        seen = [row["seen"] is not None for row in mine if there(row) and family in ("all", FAMILY[row["fault"]])]
        print(f"seen, {family:28s} {interval(sum(seen), len(seen))}")
    seen = [row["seen"] is not None for row in mine if did_not_learn(row)]
    print(f"{'seen, of those that did not learn':34s} {interval(sum(seen), len(seen))}  ({', '.join(SHOWN_BY_STATES)})")
    explained = [row for row in mine if there(row) and row["right"] and row["seen"]]
    print(f"{'first cause right':34s} {interval(sum(right(row) for row in explained), len(explained))}")
    met = True
    for word, bar in BAR.items():
        said = [
            right(row, place) for row in explained for place, (code, score) in enumerate(row["causes"])
            if stated(code, score, first=place == 0) == word
        ]  # fmt: skip
        met &= sum(said) >= bar * len(said)
        print(f"causes called {word:20s} {interval(sum(said), len(said))}  promised {100 * bar:.0f} %")
    return met


def misses(rows: list[Row]) -> None:
    """What to look at; odd seeds are never named."""
    for row in sorted((row for row in rows if row["half"] == "build"), key=lambda row: (row["fault"], row["seed"])):
        if not row["fault"] and row["healthy"] and alarms(row):
            print(f"seed {row['seed']}: healthy, raised {', '.join(alarms(row))}")
        elif there(row) and row["seen"] is None:
            raised = ", ".join(row["unexpected"]) or "nothing"
            harmless = "; it learned all the same" if row.get("healthy") else ""
            print(f"seed {row['seed']}: {row['fault']} not seen, raised {raised}{harmless}")
        elif there(row) and row["right"] and not right(row):
            print(f"seed {row['seed']}: {row['fault']} seen as {row['seen']}, cause {(row['causes'] or [['none']])[0][0]}")


def calibrate(rows: list[Row]) -> None:
    """Count how often causes of each score were right, first ones and others, in the half to build with."""
    said = [
        (place == 0, score, code, right(row, place)) for row in rows if row["half"] == "build" and there(row) and row["right"]
        for place, (code, score) in enumerate(row["causes"])
    ]  # fmt: skip
    text = CALIBRATION.read_text().partition("FIRST")[0]
    for name, first in (("FIRST", True), ("OTHER", False)):
        bins = [
            (low, [hit for at, score, _, hit in said if at is first and low <= score < high]) for low, high in pairwise(EDGES)
        ]
        table = [(low, sum(hits), len(hits)) for low, hits in bins if hits]
        text += (
            f"{name}: tuple[tuple[float, int, int], ...] = {tuple(table)}  # at least this score: how many were right, of all\n"
        )
    counts: dict[str, tuple[int, int]] = {}
    for first, _, code, hit in said:
        key = f"{code} {'first' if first else 'other'}"
        counts[key] = (counts.get(key, (0, 0))[0] + hit, counts.get(key, (0, 0))[1] + 1)
    CALIBRATION.write_text(f"{text}CAUSES: dict[str, tuple[int, int]] = {dict(sorted(counts.items()))}\n")


def read(path: Path | None) -> list[Row]:
    return (
        [json.loads(line.replace('"put_in"', '"injected"')) for line in path.read_text().splitlines() if line.endswith("}")]
        if path and path.exists()
        else []
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--healthy", action="store_true", help="no seed gets a fault")
    parser.add_argument("--json", type=Path, help="a line for each training is added here; those that it has are not run again")
    parser.add_argument("--folder", type=Path, help="keep the runs here")
    parser.add_argument("--calibrate", action="store_true", help="write what even seeds say of causes into Holdfast, and end")
    given = parser.parse_args()
    rows = read(given.json)
    waiting = [seed for seed in range(given.first, given.first + given.count) if seed not in {row["seed"] for row in rows}]
    with ProcessPoolExecutor(given.jobs) as pool:
        for future in as_completed([pool.submit(run_one, seed, given.folder, given.healthy) for seed in waiting]):
            rows.append(future.result())
            if given.json:
                with given.json.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    if given.calibrate:
        calibrate(rows)
        return 0
    print(f"{today()}, {machine(given.jobs)}")
    misses(rows)
    return 0 if all([report(rows, half) for half in ("build", "score")]) else 1  # noqa: C419 - both are printed


if __name__ == "__main__":
    raise SystemExit(main())
