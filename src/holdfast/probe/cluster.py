"""Everybody that a command asks at once: runs of this machine, and servers. Who does not answer does not stop the rest."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.errors import HoldfastError, NoSuchRun, Unreachable
from holdfast.probe.address import parse
from holdfast.probe.remote import Remote
from holdfast.probe.state import RunState, read_state
from holdfast.probe.target import registered_runs, resolve
from holdfast.signals.run_folder import RunFolder

_AT_ONCE = 32
One = TypeVar("One")
Other = TypeVar("Other")


@dataclass(frozen=True, slots=True)
class There:
    """A server that answered: its machine, and its runs by name with what marks each of them."""

    remote: Remote
    host: str
    server: str
    runs: dict[str, str]

    def __str__(self) -> str:
        return str(self.remote)


@dataclass(slots=True)
class Cluster:
    """Who was found, and who was not: `problems` names each with the reason, `notes` what a person should know."""

    here: list[RunFolder] = field(default_factory=list)
    there: list[There] = field(default_factory=list)
    problems: dict[str, HoldfastError] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def is_one_run_here(self) -> bool:
        """Whether there is nothing to merge."""
        return len(self.here) == 1 and not self.there and not self.problems

    def ask(self, job: Callable[[There], One]) -> list[tuple[There, One]]:
        """Ask all servers at the same time; those that fail are added to `problems`."""
        answers = at_once(job, self.there)
        for there, answer in zip(self.there, answers, strict=True):
            if isinstance(answer, HoldfastError):
                self.problems[str(there.remote)] = answer
        return [
            (there, answer) for there, answer in zip(self.there, answers, strict=True) if not isinstance(answer, HoldfastError)
        ]

    def check(self, answered: int) -> None:
        """Raise what went wrong if nobody answered."""
        if not answered and self.problems:
            raise next(iter(self.problems.values()))


def find(targets: Sequence[str], *, everything: bool = False, live: bool = False) -> Cluster:
    """Find all that is named; without a name the newest run here, with `live` one that can still be asked.

    `everything` means all live runs of this machine.
    """
    addresses = {target: address for target in targets if (address := parse(target)) is not None and not _is_local(target)}
    cluster = Cluster()
    for target in targets:
        if target not in addresses:
            _add_run(cluster, lambda target=target: [resolve(target)])  # type: ignore[misc]
    if everything:
        _add_run(cluster, _all_live)
    elif not targets:
        _add_run(cluster, lambda: [resolve(None, live=live)])
    remotes = [Remote(address) for address in dict.fromkeys(addresses.values())]
    for remote, answer in zip(remotes, at_once(_meet, remotes), strict=True):
        if isinstance(answer, HoldfastError):
            cluster.problems[str(remote)] = answer
        elif any(
            answer.server == earlier.server and answer.remote.address.run == earlier.remote.address.run
            for earlier in cluster.there
        ):
            cluster.notes.append(f"{remote} is the same server as one before it; it is asked once")
        else:
            cluster.there.append(answer)
    cluster.check(len(cluster.here) + len(cluster.there))
    return cluster


def states_of(cluster: Cluster) -> list[tuple[str, RunState]]:
    """The state of every run, here and there, each with its machine."""
    own = socket.gethostname()
    by_host = [(str(run.info().get("host") or own), read_state(run)) for run in cluster.here]
    for there, states in cluster.ask(lambda there: [RunState.from_dict(state) for state in there.remote.get("/v1/states")]):
        by_host += [(there.host, state) for state in states]
    cluster.check(len(by_host))
    return by_host


def at_once(job: Callable[[One], Other], items: Iterable[One]) -> list[Other | HoldfastError]:
    """Do a job for each, many at the same time; an error of one is its answer."""

    def work(item: One) -> Other | HoldfastError:
        try:
            return job(item)
        except HoldfastError as error:
            return error
        except (KeyError, TypeError, ValueError) as error:
            problem = f"{item} does not answer as this version expects ({type(error).__name__}: {error})."
            return Unreachable(problem, fix="install the same version on both machines")

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(work, items))


def _is_local(target: str) -> bool:
    """Whether a folder or run here has that very name."""
    try:
        resolve(target)
    except HoldfastError:
        return False
    return True


def _add_run(cluster: Cluster, look: Callable[[], list[RunFolder]]) -> None:
    """Local targets must exist: a name that was mistyped is an error, not a machine that is away."""
    listed = {run.path for run in cluster.here}
    cluster.here += [run for run in look() if run.path not in listed]


def _all_live() -> list[RunFolder]:
    runs = registered_runs()
    if not runs:
        raise NoSuchRun("no run is alive on this machine.", fix="holdfast ps --all lists finished runs")
    return runs


def mark_of(info: Mapping[str, Any]) -> str:
    """What tells a run from all others, wherever its folder is seen."""
    return " ".join(str(info.get(name)) for name in ("name", "host", "started", "supervisor"))


def _meet(remote: Remote) -> There:
    answer: dict[str, Any] = remote.get("/v1/runs")
    runs = {str(run["name"]): str(run["id"]) for run in answer["runs"]}
    if not runs:
        raise NoSuchRun(f"{remote} serves no run: none is alive there.", fix="start one there, or serve a finished one with -t")
    return There(remote, str(answer["host"]), str(answer["server"]), runs)
