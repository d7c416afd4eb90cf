"""What a run reported, live and in its check-up: findings with their first cause, actions, how far it got."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from holdfast.diagnosis.checkup import Episode
from holdfast.diagnosis.done import Done, all_done
from holdfast.diagnosis.of_run import check_up_run
from holdfast.errors import HoldfastError
from holdfast.probe.follow import Follower
from holdfast.signals.run_folder import Recording, RunFolder

_ALL = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """A finding; without a time it is of the check-up after the end.

    `cause` is the first that the check-up names; `causes` are all that it considered, each with its score.
    """

    code: str
    severity: str
    step: int | None
    time: float | None = None
    cause: str | None = None
    causes: tuple[tuple[str, float], ...] = ()
    ranks: tuple[int, ...] = ()  # that it names


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """Everything about a run that the score needs."""

    raised: tuple[Raised, ...] = ()  # in the order in which they were raised
    done: tuple[Done, ...] = ()
    reached: int = 0  # steps of the training, as if nothing had been made twice
    made: int = 0  # steps in all attempts together
    undone: int = 0  # updates that were skipped, or lost by going back
    began_again: int = 0  # steps of earlier processes of which the last one kept nothing: it began from the start
    saved: tuple[str, ...] = ()  # files


def read_outcome(run: RunFolder) -> RunOutcome:
    """Read it from a run folder, whatever state it was left in."""
    rows = list(run.journal)
    recordings = run.recordings()
    first = [recording for recording in recordings if recording.rank == recordings[0].rank]
    made = [_steps_of(recording) for recording in first]
    done, start = tuple(all_done(rows)), _start(first, made, rows)
    return RunOutcome(
        raised=tuple(_with_causes(run, rows)),
        done=done,
        reached=start + made[-1][2] - made[-1][1] if made else 0,
        began_again=_made_before(first, made) if start == 0 else 0,
        made=sum(count for count, _, _ in made),
        undone=len(_undone(rows)),
        saved=tuple(dict.fromkeys(str(row["path"]) for row in rows if row.get("event") == "saved" and row.get("path"))),
    )


def _with_causes(run: RunFolder, rows: Iterable[Mapping[str, Any]]) -> list[Raised]:
    """The journal's findings first, then those that only the check-up has."""
    live = [_raised(row) for row in rows if row.get("kind") == "finding" and row.get("code")]
    episodes: dict[str, Episode] = {}
    later: list[Raised] = []
    live_codes = {raised.code for raised in live}
    with contextlib.suppress(HoldfastError, OSError):
        for episode in check_up_run(run).episodes:
            for finding in episode.findings:
                episodes[finding.code] = episode
                if finding.code not in live_codes:
                    named = _ranks_in(finding.evidence)
                    later.append(Raised(code=finding.code, severity=finding.severity, step=finding.step, ranks=named))
    return [_explained(raised, episodes[raised.code]) if raised.code in episodes else raised for raised in (*live, *later)]


def _explained(raised: Raised, episode: Episode) -> Raised:
    """With the causes that explain this very finding; beside it there may be others."""
    causes = tuple(
        (hypothesis.cause.code, round(hypothesis.score, 2))
        for hypothesis in episode.considered
        if raised.code in hypothesis.findings
    )
    named = [diagnosis.cause.code for diagnosis in episode.diagnoses if raised.code in diagnosis.findings]
    return replace(raised, cause=named[0] if named else None, causes=causes)


def _raised(row: Mapping[str, Any]) -> Raised:
    step, at = row.get("step"), row.get("time")
    return Raised(
        code=str(row["code"]),
        severity=str(row.get("severity") or "warning"),
        step=step if isinstance(step, int) else None,
        time=float(at) if isinstance(at, (int, float)) else None,
        ranks=_ranks_in(row.get("evidence") or {}) or _ranks_in(row),
    )


def _ranks_in(content: Mapping[str, Any]) -> tuple[int, ...]:
    named = content.get("missing") or content.get("rank")
    return tuple(rank for rank in (named if isinstance(named, list) else [named]) if isinstance(rank, int))


def _steps_of(recording: Recording) -> tuple[int, int, int]:
    """How many rows it has, the first step and the one after the last."""
    steps = Follower(recording.path, "steps", ("step",)).new_rows(_ALL)["step"]
    return (len(steps), int(steps[0]), int(steps.max()) + 1) if len(steps) else (0, 0, 0)


def _start(recordings: list[Recording], made: list[tuple[int, int, int]], rows: Iterable[Mapping[str, Any]]) -> int:
    """The step that the last training resumed from. One that resumed from a checkpoint by itself counts from zero.

    After a fault at the very end it may have had no step to make.
    """
    if not recordings:
        return 0
    if not made[-1][0]:
        restarts = [row for row in rows if row.get("action") == "restart" and row.get("state") == "done"]
        return int(restarts[-1].get("checkpoint_step") or 0) if restarts else 0
    if (first := made[-1][1]) > 0:
        return first
    mine = [row for row in rows if row.get("event") == "resumed" and row.get("recording") == recordings[-1].name]
    before = (mine[-1].get("before") or {}).get("step") if mine else None
    return before if isinstance(before, int) else 0


def _made_before(recordings: list[Recording], made: list[tuple[int, int, int]]) -> int:
    """Steps of processes before the last one."""
    pids = [recording.info().get("pid") for recording in recordings]
    return sum(count for pid, (count, _, _) in zip(pids, made, strict=True) if pid != pids[-1])


def _undone(rows: Iterable[Mapping[str, Any]]) -> set[int]:
    steps: set[int] = set()
    for row in rows:
        if row.get("kind") != "action" or row.get("state") != "done":
            continue
        step, to = row.get("at", row.get("step")), row.get("to", (row.get("settings") or {}).get("to"))
        if row.get("action") == "skip-batch" and isinstance(step, int):
            steps.add(step)
        if row.get("action") == "roll-back" and isinstance(step, int) and isinstance(to, int):
            steps.update(range(to, step))
    return steps
