"""A rank of another machine, asked through the server there; and what is the same for it and for a rank of this machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ControlUnreachable, HoldfastError
from holdfast.probe import control_client
from holdfast.probe.remote import Remote
from holdfast.signals.control_socket import next_number
from holdfast.signals.run_folder import Recording

_SPARE = 5.0


@dataclass(frozen=True, slots=True)
class FarRank:
    """Which rank, of which run on which machine; `mark` tells the run from all others."""

    rank: int
    run: str
    host: str
    mark: str
    remote: Remote


Rank = Recording | FarRank
Reply = dict[str, Any] | ControlUnreachable


def ask_rank(rank: Recording, request: dict[str, Any], *, seconds: float) -> Reply:
    """Send one request to the process of a rank of this machine; its answer, or in words why there is none."""
    try:
        return control_client.ask(rank, request, seconds=seconds)
    except ControlUnreachable as closed:
        return closed


def ask_there(ranks: Sequence[FarRank], request: dict[str, Any], *, seconds: float) -> list[Reply]:
    """Have the server there ask ranks of one run at the same time; their answers, or in words why there is none."""
    body = {"request": request, "ranks": [rank.rank for rank in ranks], "seconds": seconds}
    try:
        by_rank = {
            reply["rank"]: reply for reply in ranks[0].remote.post("/v1/ask", body, seconds=seconds + _SPARE, run=ranks[0].run)
        }
    except HoldfastError as error:
        return [ControlUnreachable(error.problem, fix=error.fix)] * len(ranks)
    return [_reply(rank, by_rank.get(rank.rank, {})) for rank in ranks]


def _reply(rank: FarRank, answer: dict[str, Any]) -> Reply:
    if "answer" in answer:
        content: dict[str, Any] = answer["answer"]
        return content
    gone = f"{name_of(rank)} cannot be asked any more."
    return ControlUnreachable(str(answer.get("problem") or gone), fix=str(answer.get("fix") or "holdfast ps"))


def grouped_by_server(ranks: Iterable[Rank]) -> list[list[Rank]]:
    """Ranks that one request asks: those of a run behind the same server; each rank of this machine by itself."""
    groups: dict[Any, list[Rank]] = {}
    for rank in ranks:
        key = (str(rank.remote), rank.run) if isinstance(rank, FarRank) else rank
        groups.setdefault(key, []).append(rank)
    return list(groups.values())


def ask_group(ranks: Sequence[Rank], request: dict[str, Any], *, seconds: float) -> list[Reply]:
    """Ask a group of `grouped_by_server`."""
    far = [rank for rank in ranks if isinstance(rank, FarRank)]
    near = [rank for rank in ranks if not isinstance(rank, FarRank)]
    return (
        ask_there(far, request, seconds=seconds) if far else [ask_rank(recording, request, seconds=seconds) for recording in near]
    )


def name_of(rank: Rank) -> str:
    """`rank 3`, or `node1 rank 3` of another machine."""
    return f"{rank.host} rank {rank.rank}" if isinstance(rank, FarRank) else f"rank {rank.rank}"


def names_of(ranks: Sequence[Rank]) -> list[str]:
    """The name of each; where two are alike, the run's name comes first: `first rank 0`, `second rank 0`."""
    names = [name_of(rank) for rank in ranks]
    if len(set(names)) == len(names):
        return names
    return [f"{_run_of(rank)} {name}" for rank, name in zip(ranks, names, strict=True)]


def whose(rank: Rank) -> dict[str, Any]:
    """The same for `--json`."""
    host = {"host": rank.host} if isinstance(rank, FarRank) else {}
    return {**host, "run": _run_of(rank), "rank": rank.rank}


def _run_of(rank: Rank) -> str:
    return rank.run if isinstance(rank, FarRank) else rank.path.parent.name


def common_number(ranks: Iterable[Rank]) -> int:
    """One number for a change to all of these ranks, new in every run that they belong to. Raises OSError or HoldfastError."""
    runs = {(rank.mark if isinstance(rank, FarRank) else str(rank.path.parent)): rank for rank in ranks}
    taken = {key: _next(run, 0) for key, run in runs.items()}
    while behind := [key for key, number in taken.items() if number < max(taken.values())]:
        taken |= {key: _next(runs[key], max(taken.values())) for key in behind}
    return max(taken.values())


def next_from(folder: Any, at_least: int) -> int:
    """The next number of a run, or a later one: numbers in between are skipped."""
    number = next_number(folder)
    while number < at_least:
        number = next_number(folder)
    return number


def _next(rank: Rank, at_least: int) -> int:
    if isinstance(rank, FarRank):
        return int(rank.remote.post("/v1/number", {"at_least": at_least}, run=rank.run))
    return next_from(rank.path.parent, at_least)
