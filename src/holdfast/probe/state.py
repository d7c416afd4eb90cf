"""What state a run is in, seen from outside: who lives, how far each rank is, how fast, and whether it is well.

Everything may be missing: a run that has not stepped yet, a folder that was deleted, a process of another machine.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import psutil

from holdfast.probe.health import exit_word, rank_health, run_health
from holdfast.probe.pieces import open_pieces
from holdfast.probe.rows import Column, last_rows, measured
from holdfast.signals.run_folder import Recording, RunFolder

_COLUMNS = (
    *("step", "epoch", "time", "loss", "lr", "grad_norm", "step_seconds", "data_seconds", "holdfast_seconds"),
    *("gpu_allocated", "host_rss"),
)
_WINDOW = 50
_OTHER_HOST_SECONDS = 60.0  # a process of another machine counts as alive while its rows are younger than this


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """One training of one rank; None where nothing is known."""

    rank: int
    part: int
    pid: int | None
    alive: bool
    growing: bool
    step: int | None
    epoch: int | None
    loss: float | None
    grad_norm: float | None
    lr: float | None
    rate: float | None
    age: float | None
    data_share: float | None
    budget: float | None
    gpu_memory: int | None
    host_memory: int | None
    health: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run and its ranks, and the newest findings."""

    name: str
    folder: str
    alive: bool
    started: float | None
    ended: float | None
    exit_code: int | None
    command: list[str]
    health: str
    reason: str
    ranks: list[RankState]
    findings: list[dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, for `--json`."""
        return asdict(self)


def read_state(run: RunFolder, *, window: int = _WINDOW, now: float | None = None) -> RunState:
    """Look at a run; rates and shares are over the last `window` steps of each rank."""
    now = time.time() if now is None else now
    info = run.info()
    findings = [entry for entry in run.journal if entry.get("kind") == "finding"]
    ended, code = _number(info.get("ended")), info.get("exit_code")
    over = exit_word(code) if ended is not None else None
    recordings = run.recordings() if run.path.is_dir() else []
    ranks = [_rank_state(one, window, now, over, findings) for one in recordings if not _superseded(one, recordings)]
    supervised = ended is None and same_process(info.get("pid"), info.get("started"), info.get("host"))
    alive = ended is None and (bool(supervised) or any(rank.alive for rank in ranks))
    health, reason = run_health(run.path.is_dir(), alive, over, [(rank.health, rank.reason) for rank in ranks])
    return RunState(
        name=run.name,
        folder=str(run.path),
        alive=alive,
        started=_number(info.get("started")),
        ended=ended,
        exit_code=code if isinstance(code, int) else None,
        command=[str(word) for word in info.get("command") or []],
        health=health,
        reason=reason,
        ranks=ranks,
        findings=findings,
    )


def same_process(pid: Any, since: Any, host: Any) -> bool | None:
    """Whether the process still lives; None if it is another machine's. A number that was given anew does not count."""
    if host is not None and host != socket.gethostname():
        return None
    try:
        process = psutil.Process(int(pid))
        born, status = process.create_time(), process.status()
    except psutil.AccessDenied:
        return True
    except (psutil.Error, TypeError, ValueError):
        return False
    return status != psutil.STATUS_ZOMBIE and (not isinstance(since, (int, float)) or born <= since + 2.0)


def _superseded(one: Recording, others: list[Recording]) -> bool:
    """Whether a later training of the same rank took its place: in the same process, or after its process ended."""
    later = [other for other in others if other.rank == one.rank and other.part > one.part]
    if not later:
        return False
    info = one.info()
    if any(other.info().get("pid") == info.get("pid") for other in later):
        return True
    return not same_process(info.get("pid"), info.get("started"), info.get("host"))


def _rank_state(one: Recording, window: int, now: float, over: str | None, findings: list[dict[str, Any]]) -> RankState:
    info = one.info()
    rows = last_rows(one.path, "steps", _COLUMNS, window)
    figures = _figures(rows, now)
    lives = same_process(info.get("pid"), info.get("started"), info.get("host"))
    if lives is None:
        lives = figures["age"] is not None and figures["age"] < _OTHER_HOST_SECONDS
    alive = lives and over is None
    growing = figures["step"] is None or open_pieces(one.path / "steps").growing
    health, reason = rank_health(
        alive=alive,
        growing=growing,
        over=over,
        step=figures["step"],
        loss=figures["loss"],
        age=figures["age"],
        usual=_median(rows["step_seconds"]),
        degraded=_degraded(findings, one.rank),
    )
    return RankState(
        rank=one.rank,
        part=one.part,
        pid=info.get("pid"),
        alive=alive,
        growing=growing,
        health=health,
        reason=reason,
        **figures,
    )


def _figures(rows: Mapping[str, Column], now: float) -> dict[str, Any]:
    time_of_last = _last(rows, "time")
    return {
        "step": _last(rows, "step"),
        "epoch": _last(rows, "epoch"),
        "loss": _last(rows, "loss"),
        "grad_norm": _last(rows, "grad_norm"),
        "lr": _last(rows, "lr"),
        "rate": _rate(rows["time"]),
        "age": None if time_of_last is None else max(0.0, now - time_of_last),
        "data_share": _share(rows["data_seconds"], rows["step_seconds"]),
        "budget": _share(rows["holdfast_seconds"], rows["step_seconds"]),
        "gpu_memory": _last(rows, "gpu_allocated"),
        "host_memory": _last(rows, "host_rss"),
    }


def _last(rows: Mapping[str, Column], name: str) -> Any:
    """The newest value that was measured; a loss may come a step late, a sampled norm many."""
    known = rows[name][measured(rows[name])]
    return known[-1].item() if len(known) else None


def _median(values: Column) -> float | None:
    known = values[measured(values)]
    return float(np.median(known)) if len(known) else None


def _rate(times: Column) -> float | None:
    known = times[measured(times)]
    if len(known) < 2 or known[-1] <= known[0]:
        return None
    return float((len(known) - 1) / (known[-1] - known[0]))


def _share(part: Column, whole: Column) -> float | None:
    """Part of the whole over the rows that have both."""
    both = measured(part) & measured(whole)
    total = float(whole[both].sum())
    return float(part[both].sum()) / total if total > 0 else None


def _degraded(findings: list[dict[str, Any]], rank: int) -> str | None:
    for finding in findings:
        if finding.get("code") == "holdfast-degraded" and finding.get("rank", rank) == rank:
            evidence = finding.get("evidence") or {}
            return str(evidence.get("what") or evidence.get("error") or "see the journal")
    return None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
