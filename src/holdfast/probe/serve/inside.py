"""What only the machine of a run can do for a client: read its stacks, and ask its processes through their control sockets."""

from __future__ import annotations

import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.errors import HoldfastError, UsageError
from holdfast.probe.serve.reply import Json, Request
from holdfast.signals.run_folder import Recording, RunFolder

_AT_ONCE = 256
_HIGHEST = 100_000
_KNOWN = ("where", "withdraw", "complete", "eval", "set", "save", "rollback", "pause", "continue", "undo")
_SILENT = ("where", "withdraw", "complete")


def stacks(request: Request) -> Json:
    """The stacks of every process, one taking after the other: reading them stops a process for a moment.

    With `keep` they go into the run folder, so that later ones can be compared with them.
    """
    from holdfast.probe.stacks.everywhere import take_everywhere
    from holdfast.probe.stacks.frames import as_rows
    from holdfast.probe.stacks.keep import keep_stacks

    native, with_locals = bool(request.body.get("native", True)), bool(request.body.get("locals", False))
    host = socket.gethostname()
    with request.server.stacks_turn:
        taken = [(run, take_everywhere(run, native=native, locals_=with_locals)[0]) for run in request.runs]
    for run, of_run in taken if request.body.get("keep") else ():
        with contextlib.suppress(OSError):
            keep_stacks(run, of_run, when=time.time())
    return Json([{"host": host, "run": run.name, "stacks": as_rows(of_run)} for run, of_run in taken])


def ask_ranks(request: Request) -> Json:
    """Hand one request to every rank of this machine, or to those that are named, and bring back their answers."""
    action = request.body.get("request")
    if not isinstance(action, dict) or action.get("do") not in _KNOWN:
        raise UsageError("unknown request.", fix=f"ask for one of: {', '.join(_KNOWN)}")
    assert request.who is not None
    who = f"{request.who.name} from {request.address}"
    seconds = min(float(request.body.get("seconds") or 30.0), request.server.limits.ask_seconds)
    if action["do"] not in _SILENT:
        request.server.say(f"{who}: {action['do']} {action.get('code') or action.get('text') or ''}".rstrip())
    ranks = request.body.get("ranks")
    listening_ranks = [
        (run, recording) for run in request.runs for recording in _listening(run) if ranks is None or recording.rank in ranks
    ]
    with ThreadPoolExecutor(max(1, min(_AT_ONCE, len(listening_ranks)))) as pool:  # all of them: ranks wait for each other
        answers = list(pool.map(lambda pair: _ask(pair[0], pair[1], {**action, "who": who}, seconds), listening_ranks))
    return Json(answers)


def ranks(request: Request) -> Json:
    """The ranks of each run that can be asked on this machine, all that it ever had, and how many there should be."""
    rows = []
    for run in request.runs:
        size, recorded = run.info().get("world_size"), {recording.rank for recording in run.recordings()}
        here = [recording.rank for recording in _listening(run)]
        rows.append({"run": run.name, "ranks": here, "known": sorted(recorded), "world": size if isinstance(size, int) else None})
    return Json(rows)


def number(request: Request) -> Json:
    """A new number for a change to one run, not below `at_least`."""
    from holdfast.probe.far_rank import next_from

    at_least = request.body.get("at_least") or 0
    if not isinstance(at_least, int) or at_least > _HIGHEST or len(request.runs) != 1:
        raise UsageError("invalid number of a change.", fix="install the same version on both machines")
    return Json(next_from(request.runs[0].path, at_least))


def _listening(run: RunFolder) -> list[Recording]:
    from holdfast.probe.control_client import listening

    return listening(run)


def _ask(run: RunFolder, recording: Recording, request: dict[str, Any], seconds: float) -> dict[str, Any]:
    from holdfast.probe.control_client import ask

    whose = {"host": socket.gethostname(), "run": run.name, "rank": recording.rank}
    try:
        return {**whose, "answer": ask(recording, request, seconds=seconds)}
    except HoldfastError as error:
        return {**whose, "problem": error.problem, "fix": error.fix}
