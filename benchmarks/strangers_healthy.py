"""Healthy trainings of public packages, unchanged, under `holdfast run --policy heal`: recorded, bit-equal, no finding.

The drivers of `benchmarks/strangers`, and the packages' own train commands. Each runs alone and under Holdfast, and must have the
same weights after every update; where they differ it runs alone once more, to see whether it is deterministic at all. Fails where
steps, losses, learning rates or gradient norms are missing, where a bit differs, on any finding above info, any action, and on a
traceback of Holdfast's.

    make strangers-healthy                                 all whose packages are installed; hours on a slow machine
    make strangers-healthy ARGS="--only skorch_digits"
    make strangers-healthy ARGS="--json a.jsonl"           keep every result, and then
    make strangers-healthy ARGS="--write a.jsonl"          write the table into docs/scoreboard.md

timm's train command is not in its package: `git clone https://github.com/huggingface/pytorch-image-models`, then
`make strangers-healthy ARGS="--timm pytorch-image-models/train.py"` (or the variable TIMM_TRAIN).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from heal_trainings.trial import write_between
from machine import machine, today
from strangers import DRIVERS, PAGE, strangers

from holdfast.probe.rows import last_rows
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.view import measured

HERE = Path(__file__).parent
COLUMNS = ("loss", "lr", "grad_norm")
HEADS = ("training", "package", "updates", "recorded", "loss, LR, gradient norm", "bits", "findings, actions", "")
QUIET = {
    "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "YOLO_OFFLINE": "true",
    "TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0",
}  # fmt: skip


@dataclass(frozen=True)
class Training:
    """A command that is run in an empty folder; `data` makes what it reads there."""

    name: str
    package: str
    command: tuple[str, ...]
    data: str = ""
    missing: str = ""


@dataclass(frozen=True)
class Ended:
    """One run: its exit code, its time, the digest of its weights after every update, and its last words."""

    code: int
    seconds: float
    updates: int
    digest: str
    errors: str


@dataclass(frozen=True)
class Result:
    """What came of one training, alone and watched."""

    training: str
    package: str
    updates: int
    recorded: int
    columns: str
    bits: str
    raised: str
    verdict: str
    seconds: str = ""
    machine: str = ""
    date: str = ""

    def cells(self) -> list[str]:
        """The row of the table."""
        return [str(value) for value in list(asdict(self).values())[: len(HEADS)]]


def trainings(timm: str | None) -> list[Training]:
    """The drivers of the strangers, then the packages' own commands."""
    own = [
        Training(one.name, one.package, (sys.executable, str(one.path), *(word.format(folder="out") for word in one.arguments)))
        for one in strangers(DRIVERS)
    ]
    yolo = str(Path(sys.executable).with_name("yolo"))
    shapes = "detect train model=yolov8n.yaml data=data.yaml epochs=3 imgsz=96 batch=16 workers=2 device=cpu project=out"
    digits = "--data-dir data --num-classes 10 --model resnet10t --img-size 32 --epochs 3 --batch-size 64 --workers 2"
    habits = "--device cpu --opt adamw --lr 1e-3 --warmup-epochs 1 --log-interval 10 --output out --experiment a"
    return [
        *own,
        Training("yolo train", "ultralytics", (yolo, *shapes.split()), "shapes"),
        Training(
            "timm train.py", "timm", (sys.executable, timm or "", *digits.split(), *habits.split()), "digits",
            "" if timm and Path(timm).is_file() else "--timm PATH of train.py of its repository",
        ),
    ]  # fmt: skip


def make_data(kind: str, folder: Path) -> None:
    """Pictures for the commands that read files: shapes with boxes, or digits in a folder for each class."""
    if kind == "shapes":
        subprocess.run([sys.executable, str(HERE.parent / "examples/make_shapes.py"), str(folder), "200"], check=True, stdout=2)
    if kind == "digits":
        from PIL import Image
        from sklearn.datasets import load_digits

        digits = load_digits()
        for number, (picture, label) in enumerate(zip(digits.images, digits.target, strict=True)):
            place = folder / "data" / ("validation" if number % 5 == 0 else "train") / str(label)
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray((picture * 15.9).astype("uint8")).convert("RGB").resize((32, 32)).save(place / f"{number}.png")


def run(training: Training, folder: Path, *before: str) -> Ended:
    """Run it to its end in a new folder; `before` is what stands before it on the command line."""
    folder.mkdir()
    (folder / "out").mkdir()
    make_data(training.data, folder)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HOLDFAST_", "PYTHONPATH"))}
    own = {"PYTHONPATH": str(HERE / "strangers_site"), "STRANGERS_DIGEST": str(folder / "digest")}
    own |= dict.fromkeys(("XDG_RUNTIME_DIR", "YOLO_CONFIG_DIR"), str(folder))
    begun = time.perf_counter()
    done = subprocess.run(
        [*before, *training.command], cwd=folder, env={**kept, **QUIET, **own}, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - begun
    told = json.loads((folder / "digest").read_text()) if (folder / "digest").exists() else {"updates": 0, "digest": ""}
    return Ended(done.returncode, seconds, told["updates"], told["digest"], (done.stdout + done.stderr)[-200_000:])


def recorded(run_folder: RunFolder) -> tuple[int, str]:
    """How many steps were recorded, and in how many of them a column is missing."""
    rows = last_rows(run_folder.path / "rank-0", "steps", ("step", *COLUMNS), 1 << 40)
    steps = len(rows["step"])
    gaps = {name: steps - int(measured(rows[name]).sum()) for name in COLUMNS}
    return steps, ", ".join(f"{name} missing in {count}" for name, count in gaps.items() if count) or "all"


def raised(run_folder: RunFolder) -> list[str]:
    """Findings above info, during the run and in the check-up after it, and actions."""
    rows = [row for row in run_folder.journal if row["kind"] in ("finding", "action")]
    journal = [row.get("action") or row["code"] for row in rows if row["kind"] == "action" or row.get("severity") != "info"]
    command = [sys.executable, "-m", "holdfast", "diagnose", str(run_folder.path), "--json"]
    report = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(report.stdout)["runs"][0]["findings"] if report.returncode in (0, 1) else [{"code": report.stderr[-300:]}]
    return [*dict.fromkeys([*journal, *(row["code"] for row in found if row.get("severity") != "info")])]


def try_out(training: Training) -> Result | str:
    """Run one alone, again alone, and under Holdfast; or why it could not be run."""
    if training.missing:
        return f"not run: {training.missing}"
    if find_spec(training.package.replace("-", "_")) is None:
        return f"not run: pip install {training.package}"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        alone = run(training, folder / "alone")
        if alone.code:
            return f"does not run without Holdfast:\n{alone.errors[-2000:]}"
        holdfast = (
            sys.executable,
            "-m",
            "holdfast",
            "run",
            "--policy",
            "heal",
            "--folder",
            str(folder / "runs"),
            "--name",
            "a",
            "--",
        )
        watched = run(training, folder / "watched", *holdfast)
        run_folder = RunFolder.open(folder / "runs/a")
        steps, columns = recorded(run_folder)
        above = raised(run_folder)
        again = run(training, folder / "again") if alone.digest != watched.digest else watched
    if watched.code:
        above.append(f"exit {watched.code}")
    if "Traceback" in watched.errors and "Traceback" not in alone.errors:
        above.append("traceback")
    if above:
        print(watched.errors[-6000:], file=sys.stderr)
    bits = "same" if alone.digest == watched.digest else "DIFFER" if alone.digest == again.digest else "not deterministic"
    ok = columns == "all" and bits != "DIFFER" and not above and steps and steps >= alone.updates
    times = f"{alone.seconds:.0f} / {watched.seconds:.0f}"
    package = f"{training.package} {version(training.package)}"
    words = (alone.updates, steps, columns, bits, ", ".join(above) or "none", "ok" if ok else "MISSED", times)
    return Result(training.name, package, *words, machine(1), today())


def table(results: list[Result]) -> str:
    """What the page shows."""
    lines = [HEADS, ["---"] * len(HEADS), *(one.cells() for one in results)]
    about = (
        f"Measured on {', '.join(sorted({one.date for one in results}))}; {'; '.join(sorted({one.machine for one in results}))}."
    )
    return about + "\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> int:
    """Run all, or the ones named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="name of a training; may be given several times")
    parser.add_argument("--timm", default=os.environ.get("TIMM_TRAIN"), help="train.py of timm's repository")
    parser.add_argument("--json", type=Path, help="file for every result, one line each")
    parser.add_argument("--write", type=Path, metavar="JSON", help="run nothing; the table from this file")
    arguments = parser.parse_args()
    if arguments.write:
        lines: list[dict[str, Any]] = [json.loads(line) for line in arguments.write.read_text(encoding="utf-8").splitlines()]
        newest = {line["training"]: Result(**line) for line in lines}
        write_between(PAGE, "healthy strangers", table([*newest.values()]))
        return 0
    results = []
    every = {one.name: one for one in trainings(arguments.timm and str(Path(arguments.timm).resolve()))}
    for training in (every[name] for name in arguments.only or every):
        result = try_out(training)
        if isinstance(result, str):
            print(f"{training.name}: {result}", flush=True)
            continue
        print(*result.cells(), sep=" | ", flush=True)
        results.append(result)
        if arguments.json:
            with arguments.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(result)) + "\n")
    return 1 if not results or any(result.verdict != "ok" for result in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
