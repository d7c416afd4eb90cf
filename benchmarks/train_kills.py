"""Kill a training of `holdfast train` at random, again and again: does it end with the weights of one that was never killed?

    python benchmarks/train_kills.py                              50 kills of a small classifier in the trainer's loop
    python benchmarks/train_kills.py --data data.yaml --kills 10  the same with D-FINE-n, from scratch at 64 pixels

Each kill is a SIGKILL at a random moment after the training has resumed, also while it evaluates or saves; the
supervisor restarts it. Fails if the weights differ.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from machine import machine
from safetensors.torch import load_file

LOOP = Path(__file__).parents[1] / "tests" / "trainings" / "loop_digits.py"
_EPOCHS = 12


def command(arguments: argparse.Namespace) -> list[str]:
    """The training process, without a supervisor."""
    often = 0.01 / 6  # minutes: a checkpoint about every 0.1 s
    if arguments.data is None:
        settings = (f"epochs={arguments.epochs}", "workers=1", f"save_minutes={often}", "patience=0")
        return [sys.executable, str(LOOP), *settings]
    size = ("--imgsz", "64", "--batch-size", "8", "--workers", "1", "--weights", "none", "--patience", "0")
    data = ("--data", str(Path(arguments.data).absolute()), "--epochs", str(arguments.epochs), "--save-minutes", str(often))
    return [sys.executable, "-m", "holdfast.train", "detect", *data, *size]


def start(name: str, arguments: argparse.Namespace, folder: Path) -> subprocess.Popen[bytes]:
    """A run under the supervisor."""
    options = ["--name", name, "--policy", "heal", "--restarts", "1000", "--hang-after", "off"]
    words = [sys.executable, "-m", "holdfast", "run", *options, "--", *command(arguments)]
    return subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def kill_at_random(process: subprocess.Popen[bytes], run: Path, kills: int, chance: random.Random, longest: float) -> int:
    """Kill the training, not the supervisor, at a random moment after it has trained again; the number of kills."""
    done, saves = 0, 0
    while process.poll() is None and done < kills:
        time.sleep(0.02)
        if _saves(run) == saves:
            continue  # still starting: nothing to lose yet
        time.sleep(chance.uniform(0.0, longest))
        if (pid := _pid(run)) and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                done += 1
            time.sleep(0.2)
            saves = _saves(run)
    return done


def _saves(run: Path) -> int:
    try:
        return (run / "journal.jsonl").read_text().count('"event": "saved"')
    except OSError:
        return 0


def _pid(run: Path) -> int:
    try:
        return int(json.loads((run / "run.json").read_text()).get("pid") or 0)
    except (OSError, ValueError):
        return 0


def outcome(run: Path) -> dict[str, Any]:
    """Final weights, resumes and steps."""
    rows = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    resumed = [row["step"] for row in rows if row.get("event") == "loaded"]
    last = max((run / "checkpoints").glob("step-*"), key=lambda path: path.stat().st_mtime)
    return {"weights": load_file(last / "weights.safetensors"), "resumed": resumed, "last": last.name}


def main() -> int:
    """Two runs; the second is killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=_EPOCHS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", help="a detection data set")
    arguments = parser.parse_args()
    print(machine(1))
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        quiet = start("quiet", arguments, Path(folder))
        errors = quiet.communicate()[1].decode()
        if quiet.returncode:
            print(errors)
            return 2
        seconds = time.monotonic() - began
        killed = start("killed", arguments, Path(folder))
        chance = random.Random(arguments.seed)
        kills = kill_at_random(killed, Path(folder, "runs/killed"), arguments.kills, chance, longest=seconds / arguments.kills)
        errors = killed.communicate()[1].decode()
        if killed.returncode:
            print(errors)
            return 1
        one, other = outcome(Path(folder, "runs/quiet")), outcome(Path(folder, "runs/killed"))
        equal = all(torch.equal(one["weights"][name], other["weights"][name]) for name in one["weights"])
        print(f"{kills} of {arguments.kills} kills, {len(other['resumed'])} resumes from step {other['resumed']}")
        print(f"{one['last']} and {other['last']}: weights {'equal, bit for bit' if equal else 'DIFFERENT'}")
        return 0 if equal and kills else 1


if __name__ == "__main__":
    sys.exit(main())
