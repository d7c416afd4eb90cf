"""What a server answers, path by path. Paths mean all runs that it serves; `?run=NAME` chooses some."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.probe.cluster import mark_of
from holdfast.probe.glance import look
from holdfast.probe.serve import inside, node_files, tables
from holdfast.probe.serve.reply import Denied, Json, Reply, Request
from holdfast.probe.state import read_state
from holdfast.version import __version__

PROTOCOL = 1
_GLANCE_ROWS = 512


@dataclass(frozen=True, slots=True)
class Route:
    """One path: what answers it, whether it changes the training, and whether it needs no token."""

    method: str
    path: str
    answer: Callable[[Request], Reply]
    changes: bool = False
    open_to_all: bool = False
    path_parts: tuple[str, ...] = ()


def hello(_: Request) -> Json:
    """That this is a Holdfast server; a client asks it before it shows its token."""
    return Json({"holdfast": __version__, "protocol": PROTOCOL})


def runs(request: Request) -> Json:
    """The runs by name. Servers of a shared folder give the same `id` for a run, two names of one server the same `server`."""
    rows = [{"name": run.name, "id": mark_of(run.info())} for run in request.runs]
    return Json({"host": socket.gethostname(), "server": request.server.mark, "runs": rows})


def states(request: Request) -> Json:
    """The runs with their state, as `ps` shows it."""
    return Json([read_state(run).as_dict() for run in request.runs])


def run_facts(request: Request) -> Json:
    """What `run.json` says of each run."""
    return Json({run.name: run.info() for run in request.runs})


def journal(request: Request) -> Json:
    """What every run's journal holds, without the rows that `after` counts."""
    host, after = socket.gethostname(), _whole(request, "after", 0)
    journals = []
    for run in request.runs:
        info, ranks = run.info(), {recording.rank for recording in run.recordings()}
        identity = {"run": run.name, "host": info.get("host") or host, "started": info.get("started")}
        journals.append({**identity, "ranks": len(ranks), "rows": list(run.journal)[after:]})
    return Json(journals)


def glance(request: Request) -> Json:
    """Each run as `tail` shows it: its state, the curves of the last steps, the last evaluations."""
    rows = _whole(request, "rows", _GLANCE_ROWS)
    return Json([{"run": run.name, **look(run, rows=min(rows, _GLANCE_ROWS)).as_dict()} for run in request.runs])


def _whole(request: Request, option: str, usual: int) -> int:
    text = request.options.get(option, [""])[0]
    return int(text) if text.isdecimal() else usual


ROUTES = (
    Route("GET", r"/v1/hello", hello, open_to_all=True),
    Route("GET", r"/v1/runs", runs),
    Route("GET", r"/v1/states", states),
    Route("GET", r"/v1/info", run_facts),
    Route("GET", r"/v1/journal", journal),
    Route("GET", r"/v1/glance", glance),
    Route("GET", r"/v1/tables", tables.names),
    Route("GET", r"/v1/tables/(\w+)", tables.about),
    Route("GET", r"/v1/tables/(\w+)/rows", tables.rows),
    Route("POST", r"/v1/query", tables.sql),
    Route("POST", r"/v1/stacks", inside.stacks),
    Route("GET", r"/v1/ranks", inside.ranks),
    Route("POST", r"/v1/number", inside.number, changes=True),
    Route("POST", r"/v1/ask", inside.ask_ranks, changes=True),
    Route("POST", r"/v1/node/sync", node_files.sync, changes=True),
    Route("GET", r"/v1/node/checkpoint/([\w.-]+)", node_files.checkpoint),
    Route("GET", r"/v1/node/checkpoint/([\w.-]+)/file", node_files.checkpoint_file),
)


def find_route(method: str, path: str) -> Route:
    """The route of a request, with the words that its path holds."""
    for route in ROUTES:
        if route.method == method and (match := re.fullmatch(route.path, path)):
            return Route(route.method, route.path, route.answer, route.changes, route.open_to_all, match.groups())
    raise Denied(
        404, f"there is nothing at {method} {path[:80]}.", fix="see docs/diagnose.md; client and server may differ in version"
    )
