"""Run the first steps of a training twice, in processes of their own, and read what both wrote down."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.environment.repro.compare import Difference, Row, first_difference
from holdfast.environment.scratch import started_inside
from holdfast.errors import UsageError

_BEGIN = "holdfast.injected.repro:begin"
_LAST_LINES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedTraining:
    """The training and how much of it to look at."""

    command: Sequence[str]
    steps: int
    seconds: float  # time limit of one run


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two runs with the same things held still."""

    steady: tuple[str, ...]
    difference: Difference | None
    steps: int  # that both made
    step_seconds: float  # the median of both


def run_pair(request: RepeatedTraining, steady: Sequence[str] = ()) -> Pair:
    """Run it twice, one after the other: side by side they would disturb each other's threads."""
    first, second = (run_once(request, steady) for _ in range(2))
    times = sorted(float(row["seconds"]) for row in [*first[1:], *second[1:]]) or [0.0]
    return Pair(
        steady=tuple(steady),
        difference=first_difference(first, second),
        steps=min(len(first), len(second)),
        step_seconds=times[len(times) // 2],
    )


def run_once(training: RepeatedTraining, steady: Sequence[str] = (), *, digests: bool = True) -> list[Row]:
    """The rows of one run; an error in words if it made no step."""
    with tempfile.TemporaryDirectory(prefix="holdfast-repro-") as folder:
        file = Path(folder) / "record.jsonl"
        request = {
            "file": str(file),
            "steps": training.steps,
            "steady": [setting for setting in steady if setting != "hash"],
            "digests": digests,
        }
        environment = started_inside(os.environ, _BEGIN, Path(folder), HOLDFAST_REPRO=json.dumps(request), **_hash(steady))
        try:
            done = subprocess.run(
                training.command,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=training.seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            rows = _read(file)
            if rows:
                return rows
            raise UsageError(
                f"the command made no step within {training.seconds:g} s.", fix="give it more time: --timeout 600"
            ) from None
        except OSError as error:
            raise UsageError(
                f"{training.command[0]} cannot be started: {error.strerror}.", fix="name a command after --"
            ) from None
        rows = _read(file)
        if not rows:
            raise UsageError(_no_step(done), fix="it must import torch and make optimizer steps; run it without Holdfast first")
        return rows


def _hash(steady: Sequence[str]) -> dict[str, str]:
    """Only the start of Python can fix the order of sets of text."""
    return {"PYTHONHASHSEED": "0"} if "hash" in steady else {}


def _read(file: Path) -> list[Row]:
    if not file.exists():
        return []
    lines: list[Any] = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return lines


def _no_step(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
    return "\n".join([f"the command ended (exit {done.returncode}) before its first step.", *(f"  {line}" for line in lines)])
