"""A look at the stacks of a run: taken twice a moment apart, explained, kept, and compared with those taken before."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from holdfast.errors import NoSuchRun
from holdfast.probe.stacks.everywhere import take_everywhere
from holdfast.probe.stacks.frames import ProcessStacks, RankProgress, Thread
from holdfast.probe.stacks.sentence import explain
from holdfast.probe.stacks.take import take_of_process
from holdfast.probe.stacks.verdict import Verdict
from holdfast.probe.stacks.whereabouts import own_part, place, user_frame
from holdfast.signals.run_folder import RunFolder

Taken = TypeVar("Taken")
APART = 0.1  # seconds; py-spy needs as long again before it reads native frames


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one process since stacks were taken before: it stands where it stood, or it was somewhere else."""

    pid: int
    role: str
    moved: bool
    was: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that `holdfast backtrace` shows. `over` says that the run has ended and these are the last stacks kept."""

    name: str
    when: float
    stacks: list[ProcessStacks]
    verdict: Verdict
    seconds: float = 0.0
    before: float | None = None
    changes: list[Change] = field(default_factory=list)
    kept: str | None = None
    over: bool = False
    notes: list[str] = field(default_factory=list)


def report_on_run(
    run: RunFolder, *, native: bool = True, locals_: bool = False, meanwhile: Callable[[], object] = lambda: None
) -> Report:
    """Look at a run that lives; of one that is over, at the last stacks that were kept.

    `meanwhile` is called while py-spy reads: what shows the report can be loaded then.
    """
    begun = time.monotonic()
    first, _ = take_everywhere(run, native=False)
    if not any(stack.state != "gone" for stack in first):
        return _of_the_past(run)
    with ThreadPoolExecutor(1, thread_name_prefix="holdfast-look") as pool:
        later = pool.submit(_again, begun, lambda: take_everywhere(run, native=native, locals_=locals_, after=first))
        state, earlier = _far(run), _last_kept(run)  # meanwhile, for it takes its time to load numpy and pyarrow
        meanwhile()
        stacks, silent = later.result()
    verdict = explain(first, again=stacks, state=_moved(run, state, begun), world=_world(run))
    report = Report(
        name=run.name, when=time.time(), stacks=stacks, verdict=verdict, seconds=time.monotonic() - begun, notes=silent
    )
    return _kept(run, _compared(report, earlier))


def report_on_process(pid: int, *, native: bool = True, locals_: bool = False) -> Report:
    """Look at a process that belongs to no run, and at those it started. Nothing is kept."""
    begun = time.monotonic()
    first = take_of_process(pid, native=False)
    stacks = _again(begun, lambda: take_of_process(pid, native=native, locals_=locals_, after=first))
    if not stacks:
        raise NoSuchRun(f"there is no process {pid}.", fix="`holdfast ps` lists the live runs")
    verdict = explain(first, again=stacks)
    seconds = time.monotonic() - begun
    return Report(name=f"process {pid}", when=time.time(), stacks=stacks, verdict=verdict, seconds=seconds)


def compare(before: Sequence[ProcessStacks], now: Sequence[ProcessStacks]) -> list[Change]:
    """What became of the processes that are in both."""
    earlier = {stack.pid: stack.main for stack in before}
    changes = []
    for stack in now:
        was, at = earlier.get(stack.pid), stack.main
        if was is not None and at is not None:
            frame = user_frame(was)
            changes.append(Change(stack.pid, stack.role, _lines(was) != _lines(at), place(frame) if frame is not None else ""))
    return changes


def _again(begun: float, take: Callable[[], Taken]) -> Taken:
    time.sleep(max(0.0, APART - (time.monotonic() - begun)))
    return take()


def _far(run: RunFolder) -> list[RankProgress]:
    from holdfast.probe.stacks.progress import read_progress

    return read_progress(run)


def _moved(run: RunFolder, before: Sequence[RankProgress], begun: float) -> list[RankProgress]:
    from holdfast.probe.stacks.progress import read_progress

    return read_progress(run, before, apart=time.monotonic() - begun)


def _last_kept(run: RunFolder) -> tuple[float, list[ProcessStacks]] | None:
    from holdfast.probe.stacks.keep import kept_stacks

    return kept_stacks(run)


def _of_the_past(run: RunFolder) -> Report:
    last = _last_kept(run)
    if last is None:
        raise NoSuchRun(
            f"no process of run {run.name} is alive on this machine, and no stacks of it were kept.",
            fix=f"holdfast diagnose {run.target} reports how it ended; `holdfast ps` lists the live runs",
        )
    when, stacks = last
    return Report(name=run.name, when=when, stacks=stacks, verdict=explain(stacks), over=True)


def _compared(report: Report, earlier: tuple[float, list[ProcessStacks]] | None) -> Report:
    changes = compare(earlier[1], report.stacks) if earlier is not None else []
    return replace(report, before=earlier[0] if earlier is not None and changes else None, changes=changes)


def _kept(run: RunFolder, report: Report) -> Report:
    from holdfast.probe.stacks.keep import keep_stacks

    try:
        return replace(report, kept=str(keep_stacks(run, report.stacks, when=report.when)))
    except OSError as error:
        return replace(report, notes=[*report.notes, f"these stacks could not be kept in {run.path}: {error.strerror or error}"])


def _world(run: RunFolder) -> int | None:
    size: Any = run.info().get("world_size")
    return size if isinstance(size, int) else None


def _lines(thread: Thread) -> list[tuple[str, int]]:
    """Without functions: one reader of stacks writes `Queue.get`, another `get`, for the same frame."""
    return [(frame.file, frame.line) for frame in own_part(thread)]
