"""One run of a training with some faults injected, or with none: a separate process, started as a user starts it.

folder/
  run/         the run folder of `holdfast run`
  drill/       which fault was injected when
  work/        where the training runs, unless it has a place of its own
  output.txt   what was printed
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import holdfast
from holdfast.drills.hang_watch import HangWatch, counted
from holdfast.drills.injection.notes import Notes
from holdfast.drills.metric import metric_of, usual_step_seconds
from holdfast.drills.outcome import RunOutcome, read_outcome
from holdfast.drills.plan import Plan, Planned
from holdfast.drills.teardown import kill_all
from holdfast.environment.scratch import offline_trackers
from holdfast.errors import HoldfastError
from holdfast.signals.run_folder import RunFolder

_BEGIN = "holdfast.drills.injection.injector:begin"
_SITE = Path(holdfast.__file__).resolve().parent / "inside" / "site"
_OUTPUT = 1 << 20  # bytes of what was printed that are kept
_LOOK = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training as it is started. `{folder}` in its words is a folder of each run's own."""

    command: tuple[str, ...]
    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    metric: str | None = None  # its name; detected by default
    resume_args: str | None = None
    hang_after: str | None = None
    directory: Path | None = None  # where it runs; without one, in an empty folder of each run's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The result of one run."""

    training: Training
    faults: tuple[Planned, ...]
    policy: str | None  # None: without Holdfast
    seed: int
    exit_code: int
    seconds: float
    run: RunFolder | None
    notes: list[dict[str, Any]]
    steps: int
    metric: float | None
    output: str
    metric_name: str = ""
    metric_is_higher: bool = False  # when it is better
    metric_noise: float = 0.0
    step_seconds: float = 0.0  # of a usual step
    outcome: RunOutcome = field(default_factory=RunOutcome)
    ended: str = ""  # why it had to be ended: `hung`, `took too long`
    folder: Path | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """What a control noted: the names of what the training has, and its steps."""
        return next((note for note in self.notes if note.get("event") == "facts" and not note.get("rank")), {})

    @property
    def length(self) -> int:
        """Steps at which a fault can be injected: of the main optimizer, in all trainings of the process together."""
        return int(self.facts.get("steps") or self.steps)


def run_trial(
    training: Training,
    faults: tuple[Planned, ...],
    *,
    policy: str | None,
    seed: int,
    folder: Path,
    seconds: float = 600,
    stop: threading.Event | None = None,
) -> Trial:
    """Start the training with these faults and wait for its end; after `seconds`, or when `stop` is set, it is ended."""
    folder = folder.absolute()
    plan = Plan(faults=faults, folder=folder / "drill", seed=seed)
    plan.folder.mkdir(parents=True)
    where = training.directory or folder / "work"
    where.mkdir(exist_ok=True)
    begun = time.monotonic()
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            _train_command(training, policy, folder),
            cwd=where,
            env=_environment(training, policy, plan),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        hanging = HangWatch(folder / "run", plan.folder, unattended=policy != "heal")
        ended = _wait(process, begun + seconds, stop, hanging)
        if ended:
            kill_all(process, plan.folder)
    return _read(training, faults, policy, seed, folder, process.returncode, time.monotonic() - begun, ended)


def _train_command(training: Training, policy: str | None, folder: Path) -> list[str]:
    command = [word.replace("{folder}", str(folder)) for word in training.command]
    if policy is None:
        return command
    options = ["--name", "run", "--folder", str(folder), "--policy", policy]
    if training.resume_args is not None:
        options += ["--resume-args", training.resume_args]
    if training.hang_after is not None:
        options += ["--hang-after", training.hang_after]
    return [sys.executable, "-m", "holdfast", "run", *options, "--", *command]


def _environment(training: Training, policy: str | None, plan: Plan) -> dict[str, str]:
    """Ours, less what an outer `holdfast run` has put there."""
    kept = {name: value for name, value in os.environ.items() if name not in ("HOLDFAST_RUN", "HOLDFAST_SUPERVISOR")}
    path = kept.get("PYTHONPATH", "")
    paths = [str(_SITE), *([path] if path else [])] if policy is None else [path]
    return {
        **kept,
        **offline_trackers(plan.folder),
        **({"PYTHONPATH": os.pathsep.join(paths)} if any(paths) else {}),
        "SEED": str(plan.seed),
        "PYTHONHASHSEED": str(plan.seed % (1 << 32)),
        "HOLDFAST_ALSO": _BEGIN,
        **training.environment,
        **plan.as_environment(),
    }


def _wait(process: subprocess.Popen[bytes], until: float, stop: threading.Event | None, hanging: HangWatch) -> str:
    """Wait for its end. If it has to be ended, why; nothing if it ended by itself."""
    while process.poll() is None:
        if stop is not None and stop.is_set():
            return "was interrupted"
        if time.monotonic() > until:
            return "took too long"
        if hanging.is_permanent():
            return "hung"
        time.sleep(_LOOK)
    return ""


def _read(
    training: Training,
    faults: tuple[Planned, ...],
    policy: str | None,
    seed: int,
    folder: Path,
    exit_code: int,
    seconds: float,
    ended: str,
) -> Trial:
    """What it left behind."""
    run = _opened(folder / "run") if policy is not None else None
    outcome = read_outcome(run) if run is not None else RunOutcome(reached=(steps := counted(folder / "drill")), made=steps)
    printed = _end_of(folder / "output.txt")
    measured = metric_of(run, _end_of(run.path / "train.log") if run is not None else printed, training.metric)
    return Trial(
        training=training,
        faults=faults,
        policy=policy,
        seed=seed,
        exit_code=exit_code,
        seconds=seconds,
        run=run,
        notes=list(Notes(folder / "drill").read()),
        steps=outcome.reached,
        metric=None if measured is None else measured.value,
        metric_name="" if measured is None else measured.name,
        metric_is_higher=measured is not None and measured.higher,
        metric_noise=0.0 if measured is None else measured.noise,
        step_seconds=usual_step_seconds(run),
        output=printed,
        outcome=outcome,
        ended=ended,
        folder=folder,
    )


def _opened(path: Path) -> RunFolder | None:
    with contextlib.suppress(HoldfastError):
        return RunFolder.open(path)
    return None


def _end_of(path: Path) -> str:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - _OUTPUT))
        return file.read().decode(errors="replace")
    return ""
