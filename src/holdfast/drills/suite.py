"""A drill suite: controls first, then each fault that applies to the training, one per run or all in sequence."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast.drills.hang_watch import counted
from holdfast.drills.plan import Planned
from holdfast.drills.score import ControlScore, Score, score_control, score_each, spread
from holdfast.drills.selection import At, missing_requirements, plan_fault, plan_sequence, why_not_in_sequence, with_strength
from holdfast.drills.trial import Training, Trial, run_trial
from holdfast.errors import ControlFailed, UsageError

_TIMES, _SECONDS_MORE = 10, 120  # of the control: what a run with a fault may take
_CONTROL_SECONDS = 24 * 3600
_LINES = 12  # of a control that fails


@dataclass(frozen=True, slots=True)
class SkippedFault:
    """A fault that does not apply to a training."""

    training: str
    fault: str
    why: str


@dataclass(frozen=True, slots=True)
class RemainingRuns:
    """What remains after the controls: number of runs, approximate seconds, and files that every run saves to."""

    runs: int
    seconds: float
    shared: tuple[str, ...]


Result = ControlScore | Score | SkippedFault


@dataclass(slots=True)
class SuiteResult:
    """All scores, and the skipped faults with the reason."""

    controls: list[ControlScore] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    skipped: list[SkippedFault] = field(default_factory=list)
    interrupted: bool = False


def run_suite(
    trainings: Sequence[Training],
    codes: Sequence[str],
    *,
    policies: Sequence[str | None],
    seeds: Sequence[int],
    at: At | None = None,
    jobs: int = 1,
    folder: Path,
    on_result: Callable[[Result], None] | None = None,
    on_plan: Callable[[RemainingRuns], None] | None = None,
    controls: int = 0,
    sources: Mapping[str, str] | None = None,
    sequence: bool = False,
    keep: bool = True,
) -> SuiteResult:
    """Run all faults over all trainings.

    `controls`: seeds of runs without a fault at least. `sources`: the files of user-defined faults. `keep`: all
    runs, else only those that went wrong. Ctrl-C ends what runs, and gives what there is.
    """
    course = _Suite(policies, seeds, jobs, folder, on_result or (lambda _: None), keep=keep)
    try:
        course.run_controls(trainings, [*seeds, *range(max(seeds) + 1, max(seeds) + 1 + controls - len(seeds))])
        ahead = list(course.plan(trainings, codes, sources or {}, at or At(), sequence=sequence))
        if on_plan is not None:
            on_plan(course.ahead(ahead))
        course.run_faults(ahead)
    except KeyboardInterrupt:
        course.result.interrupted = True
    finally:
        course.stop.set()
    return course.result


@dataclass(frozen=True, slots=True)
class _Job:
    training: Training
    faults: tuple[Planned, ...]
    policy: str | None
    seed: int

    @property
    def label(self) -> str:
        """The name of its folder."""
        name = "control" if not self.faults else self.faults[0].code if len(self.faults) == 1 else "sequence"
        step = f"-{self.faults[0].step}" if len(self.faults) == 1 else ""
        return f"{self.training.name}-{name}{step}-{self.policy or 'without'}-{self.seed}"


class _Suite:
    def __init__(
        self,
        policies: Sequence[str | None],
        seeds: Sequence[int],
        jobs: int,
        folder: Path,
        on_result: Callable[[Result], None],
        *,
        keep: bool,
    ) -> None:
        self.result, self.stop = SuiteResult(), threading.Event()
        self._policies, self._seeds, self._jobs, self._folder = policies, seeds, jobs, folder
        self._on_result, self._keep = on_result, keep
        self._controls: dict[tuple[str, str | None, int], Trial] = {}

    # Controls

    def run_controls(self, trainings: Sequence[Training], seeds: Sequence[int]) -> None:
        """Each training without a fault. One that fails by itself ends the suite."""
        jobs = [_Job(training, (), policy, seed) for training in trainings for policy in self._policies for seed in seeds]
        with closing(self._run(jobs)) as trials:  # what still runs is ended when one fails
            for job, trial in trials:
                check_control(trial)
                self._controls[job.training.name, job.policy, job.seed] = trial
                control = score_control(trial)
                self._tidy(trial, bad=bool(control.false_alarms))
                self.result.controls.append(control if control.false_alarms or self._keep else replace(control, run=None))
                self._on_result(self.result.controls[-1])

    def _of_training(self, training: Training) -> list[Trial]:
        return [trial for (name, _, _), trial in self._controls.items() if name == training.name]

    # Faults

    def plan(
        self, trainings: Sequence[Training], codes: Sequence[str], sources: Mapping[str, str], at: At, *, sequence: bool
    ) -> Iterator[_Job]:
        """The runs to make; faults that do not apply to a training are skipped and reported."""
        for training in trainings:
            have, steps = self._facts(training)
            check_step(at.latest, steps)
            fitting = [code for code in codes if self._fits(training, code, sources.get(code, ""), have, sequence=sequence)]
            for policy in self._policies:
                for seed in self._seeds if fitting else ():
                    if sequence:
                        yield _Job(training, plan_sequence(fitting, sources, steps, at), policy, seed)
                        continue
                    for code in fitting:
                        for fault in plan_fault(code, sources.get(code, ""), seed, steps, at):
                            yield _Job(training, (fault,), policy, seed)

    def _facts(self, training: Training) -> tuple[set[str], int]:
        """What the training has, and how many steps it makes."""
        controls = self._of_training(training)
        have = {fact for trial in controls for fact in trial.facts.get("have", ())}
        return have, min(trial.length for trial in controls)

    def _fits(self, training: Training, code: str, source: str, have: set[str], *, sequence: bool) -> bool:
        why = missing_requirements(code, source, have) or (why_not_in_sequence(code, source) if sequence else "")
        if why:
            self.result.skipped.append(SkippedFault(training.name, code, why))
            self._on_result(self.result.skipped[-1])
        return not why

    def ahead(self, jobs: list[_Job]) -> RemainingRuns:
        """What the user should know before the fault runs start."""
        seconds = sum(self._control_of(job).seconds for job in jobs) / self._jobs
        apart = [str(trial.folder) for trial in self._controls.values()]
        shared = (path for trial in self._controls.values() for path in trial.outcome.saved if not path.startswith(tuple(apart)))
        return RemainingRuns(len(jobs), seconds, tuple(dict.fromkeys(shared)))

    def _control_of(self, job: _Job) -> Trial:
        return self._controls[job.training.name, job.policy, job.seed]

    def run_faults(self, jobs: list[_Job]) -> None:
        """Each job, scored beside the control of its seed."""
        for job, trial in self._run(jobs):
            control = self._control_of(job)
            alike = [trial for trial in self._of_training(job.training) if trial.policy == job.policy]
            scores = score_each(trial, control, noise=spread(alike))
            bad = any(score.worth_a_look for score in scores)
            self._tidy(trial, bad=bad)
            for score in scores:
                self.result.scores.append(score if bad or self._keep else replace(score, run=None))
                self._on_result(self.result.scores[-1])

    # Running

    def _run(self, jobs: list[_Job]) -> Generator[tuple[_Job, Trial], None, None]:
        """As many at a time as was asked for, handed out as they end."""
        with ThreadPoolExecutor(self._jobs) as pool:
            futures: dict[Future[Trial], _Job] = {pool.submit(self._trial, job): job for job in jobs}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            except BaseException:  # Ctrl-C, too
                self.stop.set()
                pool.shutdown(cancel_futures=True)
                raise

    def _trial(self, job: _Job) -> Trial:
        if self.stop.is_set():
            raise CancelledError
        control = self._control_of(job) if job.faults else None
        trial = run_trial(
            job.training if control is None else with_metric_of(job.training, control),
            tuple(with_strength(fault, control.step_seconds) for fault in job.faults) if control is not None else (),
            policy=job.policy,
            seed=job.seed,
            folder=self._folder / job.label,
            seconds=_CONTROL_SECONDS if control is None else time_limit(control),
            stop=self.stop,
        )
        if self.stop.is_set():
            self._tidy(trial, bad=False)
            raise CancelledError
        return trial

    def _tidy(self, trial: Trial, *, bad: bool) -> None:
        if not bad and not self._keep and trial.folder is not None:
            shutil.rmtree(trial.folder, ignore_errors=True)


def check_control(trial: Trial) -> None:
    """A control must train, and end well."""
    command = " ".join(trial.training.command)
    lines = [line for line in trial.output.strip().splitlines() if not line.startswith("holdfast: run ")][-_LINES:]
    log_tail = "".join(f"\n  | {line}" for line in lines)
    if trial.exit_code != 0:
        raise ControlFailed(
            f"without any fault, the training exits with code {trial.exit_code}:{log_tail}", fix=f"make this work: {command}"
        )
    if not trial.steps:
        raise ControlFailed(
            f"the command makes no step of a torch optimizer, so there is nothing to break.{log_tail}",
            fix=f"name the command that trains; `holdfast run -- {command}` and `holdfast tail` show what is seen of it",
        )
    if trial.folder is not None and not counted(trial.folder / "drill"):
        raise ControlFailed(
            "the training updates its weights without an optimizer of torch or Keras: drills inject their faults around one.",
            fix="update with an optimizer of torch.optim, or try repairs on a copy of the script that does",
        )


def check_step(step: int, steps: int) -> None:
    """A step that was asked for must come."""
    if step >= steps:
        raise UsageError(
            f"step {step:,} is beyond the end of the run, which has {steps:,} steps.",
            fix=f"--at step={steps // 2}, or none at all",
        )


def with_metric_of(training: Training, control: Trial) -> Training:
    """The training, to be judged by the metric that was found in its control."""
    return replace(training, metric=training.metric or control.metric_name or None)


def time_limit(control: Trial) -> float:
    """Seconds that a run with a fault may take."""
    return _TIMES * control.seconds + _SECONDS_MORE


def as_rows(result: SuiteResult) -> dict[str, Any]:
    """The whole course as `--json` gives it."""
    return {
        "controls": [control.as_row() for control in result.controls],
        "faults": [score.as_row() for score in result.scores],
        "skipped": [{"training": job.training, "fault": job.fault, "why": job.why} for job in result.skipped],
        "interrupted": result.interrupted,
    }
