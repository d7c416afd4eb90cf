"""The check-up of a Holdfast run: its curves, what its journal says already, its tables, and the last good run before it."""

from __future__ import annotations

import socket
from functools import partial
from typing import Any

from holdfast.detectors.finding import Finding
from holdfast.diagnosis.checkup import HEALTHY, Checkup, check_up
from holdfast.diagnosis.earlier import last_good
from holdfast.diagnosis.run_follower import findings_of
from holdfast.logs.holdfast_run import read_run
from holdfast.probe.control_client import listening
from holdfast.probe.state import read_state
from holdfast.signals.curves import Curves
from holdfast.signals.run_folder import RunFolder


def check_up_run(run: RunFolder, curves: Curves | None = None, *, compare: bool = True, target: str | None = None) -> Checkup:
    """All that can be said of it. `compare`: with an earlier good run, if something is wrong; `target`: how commands name it."""
    rows = list(run.journal)
    seen = [
        Finding(
            str(row["code"]),
            step=int(row.get("step") or 0),
            severity=str(row.get("severity") or "warning"),
            evidence=row.get("evidence") or {},
        )
        for row in rows
        if row.get("kind") == "finding" and row.get("code")
    ]
    earlier = partial(last_good, run, _is_healthy) if compare else None
    curves = read_run(run) if curves is None else curves
    return check_up(
        curves,
        seen=[*seen, *findings_of(run), *_gone(run, rows)],
        around=rows,
        name=target or run.target,
        live=bool(listening(run)),
        earlier=earlier,
    )


def _gone(run: RunFolder, rows: list[dict[str, Any]]) -> list[Finding]:
    """That a run of this machine is gone, and what watched it too: nobody was left to say so."""
    info = run.info()
    if info.get("ended") is not None or not info.get("supervisor") or info.get("host") != socket.gethostname():
        return []
    state = read_state(run, rows=rows)
    step = max((rank.step for rank in state.ranks if rank.step is not None), default=0)
    evidence = {"ended": "its process and Holdfast's are gone without a trace (killed together, or the machine went down)"}
    return [] if state.alive else [Finding("process-died", step=step, severity="critical", evidence=evidence)]


def _is_healthy(run: RunFolder) -> bool:
    return check_up_run(run, compare=False).verdict == HEALTHY
