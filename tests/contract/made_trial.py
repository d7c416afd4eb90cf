"""Trials that were never run, for the score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.drills.outcome import Raised, RunOutcome
from holdfast.drills.plan import Planned
from holdfast.drills.trial import Training, Trial
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES

TRAINING = Training(command=("python", "train.py"), name="train")


def made_trial(*codes: str, raised: tuple[Raised, ...] = (), **more: Any) -> Trial:
    """One that went well: 500 steps, accuracy 0.9, faults injected at step 200, 10 s after the start, one second apart."""
    notes = [
        {"event": "injected", "fault": code, "number": number, "step": 200 + number, "time": 10.0 + number, "rank": 0}
        for number, code in enumerate(codes)
    ]
    usual: dict[str, Any] = {
        "training": TRAINING,
        "faults": tuple(Planned(code=code, step=200 + number) for number, code in enumerate(codes)),
        "policy": "heal",
        "seed": 0,
        "exit_code": 0,
        "seconds": 20.0,
        "run": None,
        "notes": notes,
        "steps": 500,
        "metric": 0.9,
        "metric_name": "accuracy",
        "metric_is_higher": True,
        "output": "",
        "outcome": RunOutcome(raised=raised, reached=500, made=500),
    }
    return Trial(**{**usual, **more})


def raised(code: str, step: int = 200, time: float | None = 10.5, cause: str | None = None, severity: str = "critical") -> Raised:
    """A finding of such a trial."""
    return Raised(code=code, severity=severity, step=step, time=time, cause=cause)


def recorded(folder: Path, evaluations: list[tuple[str, str, float]], losses: list[float]) -> RunFolder:
    """A run folder with these losses, and these evaluations (split, name, value) after them."""
    run = RunFolder.create(folder, "run")
    recorder = Recorder.start(run, 0)
    for step, loss in enumerate(losses):
        recorder.table("steps").append(_row("steps", step=step, loss=loss))
    for split, name, value in evaluations:
        said = {"split": recorder.strings.code(split), "name": recorder.strings.code(name)}
        recorder.table("evaluations").append(_row("evaluations", step=len(losses), value=value, **said))
    recorder.close()
    return run


def _row(table: str, **given: float) -> list[float]:
    return [given.get(column.name, column.kind.missing) for column in TABLES[table].columns]
