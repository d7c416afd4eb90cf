"""SQL over everybody: over one server it runs there; over several, the columns that it needs are brought here."""

from __future__ import annotations

import time
from typing import Any

from holdfast.errors import QueryError, QueryTimeout
from holdfast.probe.cluster import Cluster, There, mark_of
from holdfast.probe.describe import TableInfo, describe
from holdfast.probe.remote_tables import RemoteRuns
from holdfast.probe.sources import LocalRun, Source
from holdfast.probe.sql import Answer, query

_SECONDS = 30.0


def query_all(cluster: Cluster, sql: str, *, limit: int = 1000, timeout: float = 10.0) -> Answer:
    """Answer SQL over all runs together; rows have the columns `host` and `run` where it is not one run of this machine."""
    if cluster.is_one_run_here:
        return query(cluster.here[0], sql, limit=limit, timeout=timeout)
    if len(cluster.there) == 1 and not cluster.here:
        return _query_there(cluster.there[0], sql, limit, timeout)
    until = time.monotonic() + timeout
    sources = [RemoteRuns(there.remote, runs, seconds=timeout) for there, runs in without_doubles(cluster)]
    here: list[Source] = [LocalRun(run, labelled=True) for run in cluster.here]
    while True:
        answer = _try([*here, *sources], sql, limit, until, timeout)
        failed = [source for source in sources if source.problem is not None]
        if not failed:
            assert answer is not None
            return answer
        for source in failed:  # what it had sent until then must not count: once more without it
            assert source.problem is not None
            cluster.problems[str(source.remote)] = source.problem
            sources.remove(source)
        cluster.check(len(here) + len(sources))


def describe_cluster(cluster: Cluster) -> list[TableInfo]:
    """The tables of all of them together."""
    if cluster.is_one_run_here:
        return describe([LocalRun(cluster.here[0])])
    distant = [RemoteRuns(there.remote, runs, seconds=_SECONDS) for there, runs in without_doubles(cluster)]
    infos = describe([*(LocalRun(run, labelled=True) for run in cluster.here), *distant])
    cluster.problems.update({str(source.remote): source.problem for source in distant if source.problem is not None})
    cluster.check(len(cluster.here) + sum(source.problem is None for source in distant))
    return infos


def without_doubles(cluster: Cluster) -> list[tuple[There, list[str]]]:
    """The runs to read of each server: one that several have, because they share a folder, is read once."""
    seen = {mark_of(run.info()) for run in cluster.here}
    chosen = []
    for there in cluster.there:
        names = [name for name, mark in there.runs.items() if mark not in seen]
        if len(names) < len(there.runs):
            cluster.notes.append(f"{there.remote} has a run that was found before; it is read once")
        seen.update(there.runs.values())
        if names:
            chosen.append((there, names))
    return chosen


def _try(sources: list[Source], sql: str, limit: int, until: float, timeout: float) -> Answer | None:
    """The answer; None if it failed because a source did."""
    left = until - time.monotonic()
    if left <= 0:
        raise QueryTimeout(f"the query was stopped after {timeout:g} s.", fix="raise the limit: --timeout 60")
    try:
        return query(sources, sql, limit=limit, timeout=left)
    except QueryError:
        if any(getattr(source, "problem", None) is not None for source in sources):
            return None
        raise


def _query_there(there: There, sql: str, limit: int, timeout: float) -> Answer:
    body: dict[str, Any] = {"sql": sql, "limit": limit, "timeout": timeout}
    reply = there.remote.post("/v1/query", body, seconds=timeout + 5.0)
    return Answer(reply["columns"], [tuple(row) for row in reply["rows"]], bool(reply["cut"]), list(reply["notes"]))
