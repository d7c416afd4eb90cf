"""Run a few steps of a training in a process of its own with another batch size, and read what was measured.

Running out of memory there ends that process and nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.environment.interpreter import with_own_python
from holdfast.environment.scratch import started_inside
from holdfast.errors import UsageError
from holdfast.memory_errors import place_of_memory_text

_BEGIN = "holdfast.injected.plan:begin"
_MEASURED_FROM = 2  # steps: the first makes the optimizer's state, the second is the first with it
_LAST_LINES = 8
_GIVE_BACK = {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed leaves the process at once


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTraining:
    """The training, and how to run it."""

    command: Sequence[str]
    seconds: float = 300.0
    steps: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one short run needed; `row` is its last step, `batch` the samples of its largest."""

    row: Mapping[str, Any]
    batch: int
    peak: int
    reserved: int


def measure(
    training: MeasuredTraining,
    *,
    batch: int | None = None,
    precision: str = "",
    activations: bool = False,
    workers: int | None = 0,
) -> Measured | None:
    """Run the training for a few steps; None if it ran out of memory."""
    with tempfile.TemporaryDirectory(prefix="holdfast-plan-") as folder:
        file = Path(folder) / "steps.jsonl"
        request = {
            "file": str(file), "steps": training.steps, "batch": batch, "precision": precision,
            "activations": activations, "workers": workers,
        }  # fmt: skip
        environment = started_inside(os.environ, _BEGIN, Path(folder), HOLDFAST_PLAN=json.dumps(request), **_GIVE_BACK)
        code, output = _run(training, environment)
        rows = _read(file)
    if len(rows) > _MEASURED_FROM:
        steady = rows[_MEASURED_FROM:]
        peak, reserved = (max(int(row.get(name, 0)) for row in steady) for name in ("peak", "reserved"))
        largest = max(int(row["samples"]) for row in steady)  # the last batch of an epoch is often smaller
        return Measured(row=steady[-1], batch=largest, peak=peak, reserved=reserved)
    if place_of_memory_text(output) is not None:
        return None
    raise UsageError(
        _no_steps(code, output, len(rows)),
        fix="it must import torch and make at least 3 optimizer steps; run it without Holdfast first",
    )


def measured_command(command: Sequence[str]) -> list[str]:
    """A command as it is, or the program that trains what `package.module:factory` makes."""
    if len(command) == 1 and ":" in command[0] and not Path(command[0]).exists():
        return [sys.executable, "-m", "holdfast.environment.plan.factory", command[0]]
    return with_own_python(command)


def _run(training: MeasuredTraining, environment: dict[str, str]) -> tuple[int | None, str]:
    """The exit code (None after a timeout) and the output; written to a file, because loader workers keep a pipe open."""
    with tempfile.TemporaryFile() as printed:
        try:
            code: int | None = subprocess.run(
                training.command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                timeout=training.seconds,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
        except OSError as error:
            raise UsageError(
                f"{training.command[0]} cannot be started: {error.strerror}.", fix="name a command after --"
            ) from None
        printed.seek(0)
        return code, printed.read().decode(errors="replace")


def _read(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


def _no_steps(code: int | None, output: str, steps: int) -> str:
    if code is None:
        return f"the command made only {steps} steps in time, too few to measure. --timeout allows more seconds."
    lines = output.strip().splitlines()[-_LAST_LINES:]
    return "\n".join([f"the command ended (exit {code}) after {steps} steps.", *(f"  {line}" for line in lines)])
