"""Where a run is stuck, and what that means, in a sentence; from stacks that were taken, without asking anybody again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.probe.stacks.alone import alone_verdict, in_debugger
from holdfast.probe.stacks.frames import HELD, STOPPED, ProcessStacks, RankProgress
from holdfast.probe.stacks.loading import loader_verdict
from holdfast.probe.stacks.together import collective_verdict, odd_one, who_waits_for_it
from holdfast.probe.stacks.verdict import Look, Verdict
from holdfast.probe.stacks.whereabouts import place, user_frame

__all__ = ["RankProgress", "Verdict", "explain"]

_SOON = 3.0  # a step that takes this many times the usual is no news


def explain(
    stacks: Sequence[ProcessStacks],
    *,
    again: Sequence[ProcessStacks] | None = None,
    state: Sequence[RankProgress] = (),
    world: int | None = None,
) -> Verdict:
    """Say where it is stuck.

    `again` is a second dump, taken a moment later; `state` how far each rank is; `world` how many ranks there are in all.
    Source files are read for the text of a line and the names of locks; one that is not here leaves those out.
    """
    look = Look(again, stacks, state) if again is not None else Look(stacks, (), state)
    verdict = _unseen(look) or _stopped(look) or _paused(look) or _moving(look) or loader_verdict(look)
    if verdict is None:
        verdict = collective_verdict(look, world) or _the_odd_one(look, alone_verdict(look))
    elif verdict.is_wrong:
        verdict = replace(verdict, say=verdict.say + who_waits_for_it(look))
    return replace(verdict, say=verdict.say[:1].upper() + verdict.say[1:])


def _unseen(look: Look) -> Verdict | None:
    if any(stack.threads for stack in look.now):
        return None
    first = look.now[0] if look.now else None
    if first is None:
        return Verdict("unseen", "no process of this run is alive on this machine.")
    gone = all(stack.state == "gone" for stack in look.now)
    say = f"{first.role} could not be read: {first.problem}." if not gone else "every process of this run has ended."
    return Verdict("unseen", say, first.pid, first.rank, evidence={"kind": "gone" if gone else "refused"})


def _stopped(look: Look) -> Verdict | None:
    for trainer in look.trainers:
        if trainer.state in (STOPPED, HELD):
            frame = user_frame(trainer.main) if trainer.main is not None else None
            at = f" It is in {place(frame)}." if frame is not None else ""
            if trainer.state == HELD:
                return Verdict(
                    "paused",
                    f"{trainer.role} (process {trainer.pid}) is stopped by a debugger.{at}",
                    trainer.pid,
                    trainer.rank,
                    frame=frame,
                )
            say = f"{trainer.role} is stopped (SIGSTOP); resume it with kill -CONT {trainer.pid}.{at}"
            return Verdict("stopped", say, trainer.pid, trainer.rank, frame=frame, evidence={"kind": "stopped"})
    return None


def _paused(look: Look) -> Verdict | None:
    for trainer in look.trainers:
        main = trainer.main
        if main is None:
            continue
        frame = user_frame(main)
        progress = look.progress(trainer.rank)
        if progress is not None and progress.doing == "paused":
            paused = f"was paused from outside{look.since(trainer, 'paused')}"
            say = f"{trainer.role} {paused}: holdfast continue -t {trainer.pid} continues it."
            return Verdict("paused", say, trainer.pid, trainer.rank, main.name, frame, {"kind": "paused"})
        if in_debugger(main):
            where = f" in {place(frame)}" if frame is not None else ""
            return Verdict("paused", f"{trainer.role} waits in a debugger{where}.", trainer.pid, trainer.rank, main.name, frame)
        if (main.call or "").startswith(("read /dev/pts/", "read /dev/tty")):
            where = f" in {place(frame)}" if frame is not None else ""
            say = f"{trainer.role} waits for input from the terminal{where}."
            return Verdict("paused", say, trainer.pid, trainer.rank, main.name, frame)
    return None


def _moving(look: Look) -> Verdict | None:
    """Steps go by, or the next one is not yet due."""
    stepping = [progress for progress in look.state if progress.step is not None]
    if not stepping or any(trainer.rank is not None and look.progress(trainer.rank) is None for trainer in look.trainers):
        return None
    newest = max(stepping, key=lambda progress: progress.step or 0)
    if all(progress.moved for progress in stepping):
        apart = f"{newest.before:,} to {newest.step:,} within {newest.apart:.1f} s" if newest.apart else f"step {newest.step:,}"
        return Verdict("moving", f"it is moving, not hung: step {apart}.", evidence={"kind": "steps", "step": newest.step})
    if all(progress.moved or _not_due(progress) for progress in stepping):
        slowest = max(stepping, key=lambda progress: progress.seconds or 0.0)
        usual = f"a step usually takes {slowest.usual:.2g} s"
        say = f"it is moving, not hung: step {slowest.step:,} ended {slowest.seconds:.1f} s ago, {usual}."
        return Verdict("moving", say, evidence={"kind": "not-due", "step": slowest.step})
    return None


def _the_odd_one(look: Look, verdict: Verdict) -> Verdict:
    """Where all ranks but one are in the same place, and nothing else is known, that one is worth the sentence."""
    odd = odd_one(look) if verdict.evidence.get("kind") in ("wait", "loop") else None
    if odd is None:
        return verdict
    stack, say = odd
    frame = user_frame(stack.main) if stack.main is not None else None
    return replace(verdict, say=say + look.silent(stack), pid=stack.pid, rank=stack.rank, frame=frame)


def _not_due(progress: RankProgress) -> bool:
    return progress.seconds is not None and progress.usual is not None and progress.seconds < _SOON * progress.usual + 0.5
