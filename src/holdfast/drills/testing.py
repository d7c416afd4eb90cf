"""Drills in tests: `assert_survives(train, "nan-batch")` fails when the fault is not seen, or not survived."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.drills.command import command_for, name_of
from holdfast.drills.faults import find
from holdfast.drills.report import in_sentences
from holdfast.drills.score import Score, score
from holdfast.drills.selection import At, load_faults, missing_requirements, plan_fault
from holdfast.drills.suite import check_control, check_step, time_limit, with_metric_of
from holdfast.drills.trial import Training, Trial, run_trial
from holdfast.errors import UsageError

_CONTROL_SECONDS = 24 * 3600
_controls: dict[tuple[object, ...], Trial] = {}  # of this process: a training is run without a fault once


def assert_survives(
    train: str | Path | Sequence[str] | Callable[[], Any],
    fault: str,
    *,
    at: int | None = None,
    policy: str = "heal",
    seed: int = 0,
    strength: float | None = None,
    fault_file: str | Path | None = None,
    metric: str | None = None,
    environment: Mapping[str, str] | None = None,
    resume_args: str | None = None,
    hang_after: str | None = None,
) -> Score:
    """Run a training with a fault and without, in processes of their own; AssertionError if it is not seen, or not survived.

    `train` is a script, the words of a command, or a function at the top of a module. Under a `policy` other than heal, and
    of a fault that nobody can survive, it need only be seen. Returns the score.
    """
    training = Training(
        command=command_for(train),
        name=name_of(train),
        metric=metric,
        environment=environment or {},
        resume_args=resume_args,
        hang_after=hang_after,
        directory=Path.cwd(),
    )
    source = load_faults(Path(fault_file)).get(fault, "") if fault_file is not None else ""
    find(fault, source)  # an unknown fault is an error before anything runs
    control = _control(training, policy, seed)
    missing = missing_requirements(fault, source, control.facts.get("have", ()))
    if missing:
        raise UsageError(f"the training cannot have the fault {fault!r}: {missing}.", fix="drill it with another fault")
    (plan,) = plan_fault(fault, source, seed, control.length, At(() if at is None else (at,)))
    check_step(plan.step, control.length)
    place = Path(tempfile.mkdtemp(prefix="holdfast-drill-"))
    tried = (replace(plan, strength=strength),)
    alike = with_metric_of(training, control)
    trial = run_trial(alike, tried, policy=policy, seed=seed, folder=place / fault, seconds=time_limit(control))
    result = score(trial, control)
    if not result.injected or not result.good:
        raise AssertionError(in_sentences(result))  # its run is kept, and named
    shutil.rmtree(place, ignore_errors=True)
    return replace(result, run=None)


def _control(training: Training, policy: str, seed: int) -> Trial:
    key = (training.command, tuple(sorted(training.environment.items())), training.metric, training.directory, policy, seed)
    if key not in _controls:
        with tempfile.TemporaryDirectory(prefix="holdfast-drill-", ignore_cleanup_errors=True) as place:
            trial = run_trial(training, (), policy=policy, seed=seed, folder=Path(place) / "control", seconds=_CONTROL_SECONDS)
            check_control(trial)  # it reads what the run has left there
        _controls[key] = trial
    return _controls[key]
