"""A resumed segmentation turns deep supervision on at a multiple of the safe learning rate: it collapses, and heals under `heal`.

    python benchmarks/collapse.py --data ../shared/data/nuclei_dsb2018_256

Three runs resume from one: `safe` with the learning rate that was safe, `observe` and `heal` with a multiple of it; nothing warms
up. Printed are their IoU after each epoch and what Holdfast did. Fails if `observe` keeps its IoU, or if the best IoU of `heal`
in the last three epochs is more than 2 % below that of `safe`.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from machine import machine, today
from train_detect import output_of

MOST_LOST, COLLAPSED = 0.02, 0.5  # of the IoU of `safe`
LAST = 3  # epochs


def train(arguments: argparse.Namespace, folder: Path) -> None:
    """The run that the others resume: no deep supervision, the safe learning rate."""
    size = ["--img-size", str(arguments.imgsz), "--batch-size", "16", "--num-workers", str(arguments.workers), "--cache", "ram"]
    model = ["--backbone", arguments.backbone, "--weights", "none", "--skip-stage1", "--no-deep-supervision", "--ema", "0"]
    speed = ["--stage2-lr", str(arguments.lr), "--scheduler", "constant", "--warmup-epochs", "2", "--max-grad-norm", "0"]
    place = ["--project", str(folder), "--name", "before", "--policy", "observe", "--device", arguments.device, "--patience", "0"]
    command = ["train", "segment", "--data", str(Path(arguments.data).absolute()), "--epochs", str(arguments.epochs)]
    output_of([sys.executable, "-m", "holdfast", *command, *size, *model, *speed, *place, "--optimizer", arguments.optimizer])


def resume(arguments: argparse.Namespace, folder: Path, name: str, policy: str, factor: float) -> list[float]:
    """Resume it with deep supervision; the IoU of each epoch since."""
    changes = ["--deep-supervision", "--stage2-lr", str(arguments.lr * factor), "--epochs", str(3 * arguments.epochs)]
    command = ["resume", "before", "--folder", str(folder), "--name", name, "--policy", policy, "--warmup-epochs", "0"]
    output_of([sys.executable, "-m", "holdfast", *command, *changes])
    rows = csv.DictReader((folder / name / "metrics.csv").read_text(encoding="utf-8").splitlines())
    return [float(row["iou"]) for row in rows if int(row["epoch"]) > arguments.epochs]


def actions(run: Path) -> list[str]:
    """What was found and done, in the journal's words."""
    lines = []
    for line in (run / "journal.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["kind"] == "finding" and row.get("severity") != "info":
            lines.append(f"step {row['step']}: {row['code']}")
        elif row["kind"] == "action" and row.get("state") == "done":
            settings = {name: row[name] for name in ("factor", "to", "why") if name in row} | (row.get("settings") or {})
            lines.append(f"step {row['step']}: {row['do']} ({', '.join(f'{name} {value}' for name, value in settings.items())})")
        elif row["kind"] == "change":
            lines.append(f"step {row['step']}: settings differ: {row['what']}")
    return lines


def main() -> int:
    """Train, print the curves, and say whether the bars are kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", default="../shared/data/nuclei_dsb2018_256")
    parser.add_argument("--backbone", default="resnet10t")
    parser.add_argument("--imgsz", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10, help="of the first run; the others train twice as many more")
    parser.add_argument("--lr", type=float, default=3e-3, help="the safe learning rate")
    parser.add_argument("--factor", type=float, default=2.0)
    parser.add_argument("--optimizer", default="adamw", choices=("adamw", "sgd"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    print(f"{today()}: {machine(arguments.jobs)}")
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(arguments.jobs) as pool:
        folder = Path(temporary)
        train(arguments, folder)
        runs = {"safe": ("observe", 1.0), "observe": ("observe", arguments.factor), "heal": ("heal", arguments.factor)}
        futures = {name: pool.submit(resume, arguments, folder, name, *how) for name, how in runs.items()}
        curves = {name: future.result() for name, future in futures.items()}
        for name, curve in curves.items():
            print(f"{name:8} IoU of each epoch: {' '.join(f'{value:.3f}' for value in curve)}")
        for line in actions(folder / "heal"):
            print(f"  heal, {line}")
    ends = {name: max(curve[-LAST:]) for name, curve in curves.items()}
    lost = 1 - ends["heal"] / ends["safe"]
    print(f"best of the last {LAST} epochs: {', '.join(f'{name} {value:.3f}' for name, value in ends.items())}")
    if collapsed := ends["observe"] < COLLAPSED * ends["safe"]:
        verdict = "kept" if lost <= MOST_LOST else "MISSED"
        print(f"under heal {lost:.1%} of the safe run's IoU is lost; bar {MOST_LOST:.0%}: {verdict}")
    else:
        print("the run without repairs did not collapse: nothing to repair; try a larger --factor")
    return 0 if collapsed and lost <= MOST_LOST else 1


if __name__ == "__main__":
    raise SystemExit(main())
