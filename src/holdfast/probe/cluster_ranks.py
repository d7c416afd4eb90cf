"""The ranks of everybody that is asked: of runs here, and of servers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ControlUnreachable, HoldfastError, NoSuchRun, UsageError
from holdfast.probe.changing import ranks_to_ask
from holdfast.probe.cluster import Cluster
from holdfast.probe.far_rank import FarRank, Rank


@dataclass(frozen=True, slots=True)
class Crew:
    """The ranks of one run that can be asked, all that it ever had, and how many there should be."""

    ranks: list[Rank]
    recorded: set[int]
    world: int | None


def crews_of(cluster: Cluster, rank: int | None = None) -> list[Crew]:
    """The ranks of each run, or only the one of that number; servers and runs that cannot be asked are in `problems`."""
    every_crew = []
    for here in cluster.here:
        try:
            every_crew.append(_here(here, rank))
        except HoldfastError as error:
            cluster.problems[here.name] = error
    for there, crews in cluster.ask(lambda there: there.remote.get("/v1/ranks")):
        for crew in crews:
            run = str(crew["run"])
            ranks = [
                FarRank(n, run, there.host, there.runs.get(run, run), there.remote) for n in crew["ranks"] if rank in (None, n)
            ]
            every_crew.append(Crew(list(ranks), set(crew["known"]), crew["world"]))
            if rank is None and not ranks:
                over = f"no rank of {run} on {there.host} can be asked: its training is over, or has not begun."
                cluster.problems[f"{there}/{run}"] = NoSuchRun(over, fix=f"holdfast ps -t {there}")
    cluster.check(sum(len(crew.ranks) for crew in every_crew))
    if not any(crew.ranks for crew in every_crew):
        raise NoSuchRun(f"no rank {rank} of these runs can be asked.", fix="holdfast ps -t … shows the ranks")
    return every_crew


def _here(run: Any, rank: int | None) -> Crew:
    size = run.info().get("world_size")
    recorded = {recording.rank for recording in run.recordings()}
    return Crew(list(ranks_to_ask(run, rank)), recorded, size if isinstance(size, int) else None)


def refuse_several(cluster: Cluster) -> None:
    """A server of several runs was named, and not which of them: code and changes are for one run."""
    for there in cluster.there:
        if len(there.runs) > 1:
            first = next(iter(there.runs))
            raise UsageError(
                f"{there} serves several runs: {', '.join(there.runs)}.", fix=f"name one: -t {there}/{first}; or --all"
            )


def ranks_in(crews: Sequence[Crew]) -> list[Rank]:
    """All of them, by number."""
    return sorted((rank for crew in crews for rank in crew.ranks), key=lambda rank: rank.rank)


def refuse_part(cluster: Cluster, crews: Sequence[Crew]) -> None:
    """A change to some ranks of a training makes them differ for ever: it is for all of them, or for none."""
    for problem in cluster.problems.values():
        raise ControlUnreachable(f"{problem.problem} A change must reach every rank: nothing was changed.", fix=problem.fix)
    for job in jobs_in(crews):
        requested = {rank.rank for crew in job for rank in crew.ranks}
        recorded = {number for crew in job for number in crew.recorded}
        world = max((crew.world or 0 for crew in job), default=0)
        missing = sorted((recorded | set(range(world))) - requested)
        if missing:
            raise ControlUnreachable(
                f"rank {missing[0]} cannot be asked{f', nor {len(missing) - 1} more' if len(missing) > 1 else ''}, "
                "and a change must reach all of them.",
                fix="name every machine: -t node1:8080 -t node2:8080; or one rank, on purpose: --rank 0",
            )


def jobs_in(crews: Sequence[Crew]) -> list[list[Crew]]:
    """Which runs are one training: those that have its ranks between them. A run that has all of its own is one by itself."""
    jobs: dict[object, list[Crew]] = defaultdict(list)
    for number, crew in enumerate(crews):
        own = {rank.rank for rank in crew.ranks}
        complete = crew.world is None or len(own) >= crew.world
        jobs[number if complete else ("part", crew.world)].append(crew)
    return list(jobs.values())
