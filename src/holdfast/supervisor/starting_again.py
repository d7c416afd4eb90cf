"""The next attempt: what it resumes from, with which of the script's own flags and which changes, and how that is said."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.signals.run_folder import RunFolder
from holdfast.supervisor.attempts import highest_lr, lowered, workers_of
from holdfast.supervisor.forwarding import Forwarding
from holdfast.supervisor.launch import Launch

if TYPE_CHECKING:
    from holdfast.detectors.finding import Finding
    from holdfast.recovery.restart import Changes, Ending, Restart
    from holdfast.signals.actions import Action
    from holdfast.supervisor.post_mortem import PostMortem
    from holdfast.supervisor.resume import Origin

_TERMINATED = 143
_CANNOT_LOAD, _TORN = "checkpoint-incompatible", "checkpoint-torn"


class StartingAgain:
    """How the attempts of a run ended, and the one that comes after them."""

    def __init__(self, launch: Launch, run: RunFolder, signals: Forwarding) -> None:
        self._launch, self._run, self._signals = launch, run, signals
        self._endings: list[Ending] = []
        self._changes: Changes | None = None
        self._with_flag = False  # the attempt was started with the script's own flag for resuming
        self._cannot_load = False  # an attempt ended as it loaded what the script had saved: the next ones go without
        self._set_aside: Path | None = None  # where the checkpoints were moved that kept the script from starting

    @property
    def number(self) -> int:
        """Of the attempt that runs, 1 for the first."""
        return len(self._endings) + 1

    @property
    def has_one_to_spare(self) -> bool:
        """Whether a restart may be used up for less than a failure: the last one is not."""
        return self.number < self._launch.settings.restarts

    def first(self) -> Launch:
        """The first attempt: from the start, or from where an earlier start of the same run has got to."""
        launch = resumed(self._launch)
        self._with_flag = launch.command is not self._launch.command
        return launch

    def after(
        self, post_mortem: PostMortem, code: int, *, since: float, why: str, ended_here: bool, rolling_back: Action | None
    ) -> Launch | str | None:
        """The attempt after one that began at `since` and ended so; or why there is none, where that is worth a line.

        `why` says how it ended, `ended_here` that Holdfast ended it, and `rolling_back` what it was ended for, if a roll-back.
        """
        from holdfast.recovery.restart import Changes, Ending, Stop, decide
        from holdfast.supervisor.resume import find_origin
        from holdfast.supervisor.set_aside import set_aside, set_damaged_aside, set_undone_aside

        is_again = bool(self._endings) and not post_mortem.steps  # a restart that failed before its first step
        refused = str(post_mortem.finding.evidence.get("error") or "") if is_again else ""
        self._set_aside = set_aside(self._run, refused, len(self._endings))
        if is_again and post_mortem.finding.code == _TORN:
            self._set_aside = set_damaged_aside(self._run, since)
        before = _before(post_mortem.finding)
        if rolling_back is not None:
            before = int(rolling_back.settings["before"])
            self._set_aside = set_undone_aside(self._run, before)
        origin = find_origin(self._run, before=before)
        stopped_early = bool(post_mortem.finding.evidence.get("stopped_early"))
        if stopped_early:
            origin = replace(origin, kept=None, kept_step=None)
        self._cannot_load |= is_again and post_mortem.finding.code == _CANNOT_LOAD
        if self._cannot_load:
            origin = replace(origin, path=None, step=None)
        self._endings.append(
            Ending(
                code=post_mortem.finding.code,
                exit_code=code or _TERMINATED if ended_here else code,
                requested=self._signals.requested is not None,
                error=post_mortem.error,
                steps=post_mortem.steps,
                reached=post_mortem.ended.step,
                checkpoint=str(origin.path or origin.kept or "") or None,
                checkpoint_step=origin.step if origin.path is not None else origin.kept_step,
                workers=workers_of(self._run),
                with_flag=self._with_flag,
                rolled_back=rolling_back is not None,
                catching_up=is_again and post_mortem.trained,
                stopped_early=stopped_early,
                explained=_is_explained(self._run, since, post_mortem.ended.step or 0),
            )
        )
        decided = decide(self._endings, self._changes or Changes(), at_most=self._launch.settings.restarts)
        if isinstance(decided, Stop):
            self._tell_stop(post_mortem, decided.why)
            return decided.why
        if not self._prepare(decided, origin, since, rolling_back):
            return None
        return self._next(post_mortem, origin, why, rolling_back)

    def _prepare(self, decided: Restart, origin: Origin, since: float, rolling_back: Action | None) -> bool:
        """End what is left over, wait, and note what changes; False if somebody has ended the run meanwhile."""
        from holdfast.supervisor.ending import end_all

        end_all(self._run, None)  # workers and ranks that are left over
        wait = decided.wait * float(os.environ.get("HOLDFAST_BACK_OFF") or 1.0)
        if self._signals.hurry.wait(wait) or self._signals.requested is not None:
            return False
        factor, limit = decided.changes.lr_factor * lowered(self._run, since), None
        if rolling_back is not None and "lr_limit" in rolling_back.settings:
            # as it was then: a schedule may have lowered it since
            limit = highest_lr(self._run, origin.kept_step or 0, int(rolling_back.settings["before"]))
        self._changes = replace(decided.changes, lr_factor=factor, lr_limit=limit)
        with contextlib.suppress(OSError):  # what was posted for the attempt before is not for this one
            number = len(self._endings)
            (self._run.path / "action_queue.jsonl").rename(self._run.path / f"action_queue-{number}.jsonl")
        return True

    def _next(self, post_mortem: PostMortem, origin: Origin, why: str, rolling_back: Action | None) -> Launch:
        from holdfast.supervisor.resume import arguments, environment

        changes, settings = self._changes, self._launch.settings
        assert changes is not None
        attempt = self.number
        facts = {
            "checkpoint": origin.path,
            "step": origin.step,
            "attempt": attempt,
            "workers": changes.workers,
            "parts": changes.parts,
            "lr_factor": changes.lr_factor,
        }
        flag = [] if self._flag_failed else arguments(settings.resume_args, facts, needs="checkpoint")
        self._with_flag = bool(flag)
        more = [*flag, *arguments(settings.restart_args, facts)]
        command = replace(self._launch.command, arguments=(*self._launch.command.arguments, *more))
        lost = self._done_again(origin) if flag else None
        parts = [self._from(origin, flag, lost), *changes.sentences()]
        moved = "the damaged checkpoint" if post_mortem.finding.code == _TORN else "earlier checkpoints"
        moved = "later checkpoints" if rolling_back is not None else moved
        parts += [f"{moved} moved to {self._set_aside}"] if self._set_aside is not None else []
        number = sum(not ending.flag_failed for ending in self._endings)
        line = f"{why}\nholdfast: restarted ({number} of {settings.restarts} restarts): {', '.join(parts)}"
        row = {"action": "restart", "step": post_mortem.ended.step or 0, "because": post_mortem.finding.code}
        changed = {name: facts[name] for name in ("workers", "parts", "lr_factor") if facts[name] not in (None, 1, 1.0)}
        if rolling_back is not None:
            changed |= {"to": origin.kept_step, **({"lr_limit": changes.lr_limit} if changes.lr_limit is not None else {})}
        action_settings = {
            "attempt": attempt,
            "checkpoint": self._endings[-1].checkpoint,
            "checkpoint_step": self._endings[-1].checkpoint_step,
            **({"resumed_with": shlex.join(flag), "done_again": lost} if flag else {}),
            **({"flag_failed": True} if self._endings[-1].flag_failed else {}),
        }
        with contextlib.suppress(OSError):
            self._run.journal.write("action", **row, settings=changed, state="done", detail=", ".join(parts), **action_settings)
        return replace(self._launch, command=command, line=line, more=environment(self._run, origin, changes, attempt))

    @property
    def _flag_failed(self) -> bool:
        return any(ending.flag_failed for ending in self._endings)

    def _done_again(self, origin: Origin) -> int | None:
        """How many steps come again after the checkpoint that the script resumes from; None if that is not known."""
        reached = max((ending.reached + 1 for ending in self._endings if ending.reached is not None), default=0)
        return reached - origin.step if origin.step is not None and reached >= origin.step else None

    def _from(self, origin: Origin, flag: Sequence[str], lost: int | None) -> str:
        """Where the next attempt begins, and why not as it was told to."""
        from holdfast.units import count

        template = self._launch.settings.resume_args or ""
        if origin.path is None and self._changes is not None and self._changes.catch_up == "never":
            return "from the start: the script stops early while it is fast-forwarded"
        if self._cannot_load:
            own = f"Holdfast's own checkpoint (step {origin.kept_step:,})" if origin.kept_step else "the beginning"
            return f"from {own}: the script could not load what it had saved"
        if flag and origin.path is not None:
            at = f" (step {origin.step:,})" if origin.step is not None else ""
            again = "" if lost is None else f", {count(lost, 'step')} repeated"
            return f"from {origin.path.name}{at} with {_flag_in(template)}{again}"
        if not template:
            return f"from {_shown(origin)}"
        why = "the script ended before its first step with it" if self._flag_failed else "the script saved no clean checkpoint"
        return f"from {_shown(origin)}, without {_flag_in(template)}: {why}"

    def _tell_stop(self, post_mortem: PostMortem, why: str | None) -> None:
        if why is None:
            return
        with contextlib.suppress(OSError):
            row: dict[str, Any] = {"action": "restart", "step": post_mortem.ended.step or 0, "because": post_mortem.finding.code}
            self._run.journal.write("action", **row, settings={}, state="refused", detail=why)


def resumed(launch: Launch) -> Launch:
    """A launch that continues its run from the newest clean checkpoint, if an earlier start has recorded a training."""
    recordings = launch.run.recordings() if launch.run is not None and launch.settings.resume else []
    if launch.run is None or not recordings:
        return launch
    from holdfast.recovery.restart import Changes
    from holdfast.supervisor.resume import arguments, environment, find_origin

    origin, attempt = find_origin(launch.run), max(recording.part for recording in recordings) + 2
    flag = arguments(launch.settings.resume_args, {"checkpoint": origin.path, "step": origin.step}, needs="checkpoint")
    command = replace(launch.command, arguments=(*launch.command.arguments, *flag)) if flag else launch.command
    line = f"{launch.line}\nholdfast: resumed from {_shown(origin)}"
    return replace(launch, command=command, line=line, more=environment(launch.run, origin, Changes(), attempt))


def _before(finding: Finding) -> int | None:
    """Numbers that went wrong at a step were wrong in what was saved after it."""
    return finding.onset if finding.code.startswith(("non-finite", "loss-divergence", "metric-collapse")) else None


def _is_explained(run: RunFolder, since: float, step: int) -> bool:
    """Whether a bad batch or damaged weights were reported at the unfinished step of an attempt that began at `since`."""
    rows = [row for row in run.journal if row.get("kind") == "finding" and float(row.get("time") or 0) >= since]
    said = (row for row in rows if isinstance(row.get("step"), int) and row["step"] >= step)
    return any(row.get("code") == "non-finite-input" or (row.get("evidence") or {}).get("damaged") for row in said)


def _flag_in(template: str) -> str:
    """The name of the flag, or all of a template that has none."""
    first = template.split()[0].partition("=")[0]
    return first if first.startswith("-") else template


def _shown(origin: Origin) -> str:
    path, step = (origin.path, origin.step) if origin.path is not None else (origin.kept, origin.kept_step)
    if path is None:
        return "the start: no clean checkpoint was saved"
    at = f" (step {step:,})" if step is not None else ""
    if origin.path is None:
        return f"{path.name}{at}"
    own = f"Holdfast's own (step {origin.kept_step:,})" if origin.kept_step else "the beginning"
    return f"{path.name}{at} if the script loads it, otherwise from {own}"
