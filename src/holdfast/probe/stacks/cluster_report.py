"""A look at the stacks of several runs or machines at once: a job whose ranks are on many machines is reported as one."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.probe.cluster import Cluster, There
from holdfast.probe.stacks.everywhere import take_everywhere
from holdfast.probe.stacks.frames import ProcessStacks, RankProgress, from_rows
from holdfast.probe.stacks.keep import keep_stacks
from holdfast.probe.stacks.report import APART, Report
from holdfast.probe.stacks.sentence import explain
from holdfast.probe.state import RunState, read_state


@dataclass(frozen=True, slots=True)
class Place:
    """What was seen of one run: the machine, the processes, and how far the ranks are."""

    host: str
    run: str
    stacks: list[ProcessStacks]
    state: RunState | None = None


Places = dict[tuple[str, str], Place]  # by whom was asked, and the run's name


def reports_on(cluster: Cluster, *, native: bool = True, locals_: bool = False) -> list[Report]:
    """One report if every rank is there once; else one for each run. Who does not answer is in the cluster's problems."""
    begun = time.monotonic()
    first = _look(cluster, native=False, locals_=False)
    time.sleep(APART)
    now = _look(cluster, native=native, locals_=locals_, keep=True)
    cluster.check(len(now))
    _keep(cluster, now)
    jobs = [now] if _one_job(now) else [{key: place} for key, place in now.items()]
    return [_report(job, first, time.monotonic() - begun) for job in jobs]


def _look(cluster: Cluster, *, native: bool, locals_: bool, keep: bool = False) -> Places:
    own = socket.gethostname()
    looks = {}
    for run in cluster.here:
        stacks = _at(own, take_everywhere(run, native=native, locals_=locals_)[0])
        looks[str(run.path), run.name] = Place(own, run.name, stacks, read_state(run))

    def there(server: There) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        body = {"native": native, "locals": locals_, "keep": keep}
        return server.remote.post("/v1/stacks", body), server.remote.get("/v1/states")

    for server, (taken, states) in cluster.ask(there):
        by_name = {str(state["name"]): RunState.from_dict(state) for state in states}
        for answer in taken:
            host, name = str(answer["host"]), str(answer["run"])
            looks[str(server), name] = Place(host, name, _at(host, from_rows(answer["stacks"])), by_name.get(name))
    return looks


def _at(host: str, stacks: Sequence[ProcessStacks]) -> list[ProcessStacks]:
    return [stack if stack.host else replace(stack, host=host) for stack in stacks]


def _one_job(places: Places) -> bool:
    """Whether no rank is there twice: then they are the ranks of one training."""
    ranks = [stack.rank for place in places.values() for stack in place.stacks if stack.is_rank]
    return len(places) == 1 or (bool(ranks) and len(ranks) == len(set(ranks)))


def _report(job: Places, first: Places, apart: float) -> Report:
    stacks = sorted(
        (stack for place in job.values() for stack in place.stacks), key=lambda stack: (stack.rank is None, stack.rank or 0)
    )
    earlier = [stack for key in job if key in first for stack in first[key].stacks]
    state = [rank for key, place in job.items() for rank in _progress(first.get(key), place, apart)]
    place = next(iter(job.values()))
    name = f"{place.run} on {place.host}" if len(job) == 1 else f"{len(job)} runs"
    verdict = explain(earlier, again=stacks, state=state)
    return Report(name=name, when=time.time(), stacks=stacks, verdict=verdict, seconds=apart)


def _progress(before: Place | None, now: Place, apart: float) -> list[RankProgress]:
    earlier = {rank.rank: rank.step for rank in before.state.ranks} if before is not None and before.state is not None else {}
    return [
        RankProgress(
            rank=rank.rank,
            step=rank.step,
            before=earlier.get(rank.rank),
            seconds=rank.age,
            usual=1.0 / rank.rate if rank.rate else None,
            apart=apart,
        )
        for rank in (now.state.ranks if now.state is not None else ())
    ]


def _keep(cluster: Cluster, now: Places) -> None:
    """Keep what was taken here; other machines keep their own."""
    for run in cluster.here:
        try:
            keep_stacks(run, now[str(run.path), run.name].stacks, when=time.time())
        except OSError as error:
            cluster.notes.append(f"these stacks could not be kept in {run.path}: {error.strerror or error}")
