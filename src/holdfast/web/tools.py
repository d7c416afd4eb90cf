"""The tools of the MCP server: what a coding agent asks about a training, in answers that are short and structured."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import Any

import anyio.to_thread

from holdfast.errors import HoldfastError, UsageError
from holdfast.probe.changing import evaluate, ranks_to_ask
from holdfast.probe.control_client import who
from holdfast.probe.serve.tokens import Token
from holdfast.probe.sources import LocalRun
from holdfast.probe.sql import query as run_sql
from holdfast.probe.values import for_json
from holdfast.signals.schema import TABLES
from holdfast.version import __version__
from holdfast.web import acting, tabs
from holdfast.web.checkups import checkup_of
from holdfast.web.commands import answer_of, checkpoints_of
from holdfast.web.curves import AXES
from holdfast.web.runs import Runs, Watched

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.server.transport_security import TransportSecuritySettings
except ImportError as error:
    problem = "the tools for coding agents need the MCP SDK, which is not installed."
    raise UsageError(problem, fix="pip install 'holdfast[mcp]'") from error

WHO: contextvars.ContextVar[tuple[Token | None, str]] = contextvars.ContextVar("who")  # whose call it is, and from where
_INSTRUCTIONS = """Holdfast watches PyTorch trainings. Begin with list_runs, then diagnose: it names what is wrong, the likely
cause and the fix. explain tells more about a finding's code. query runs read-only SQL over everything that was recorded."""
_ROW = (
    *("id", "health", "reason", "alive", "step", "epoch", "loss", "lr", "rate", "eta", "evaluation", "findings", "action"),
    *("host", "far"),
)
_MOST_ROWS, _MOST_POINTS, _TEXT = 500, 400, 400
_SQL_SECONDS = 20.0


class Tools:
    """One method for each tool; its docstring is what the agent reads. A run is named by its id, or not at all: the newest."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    async def list_runs(self) -> dict[str, Any]:
        """All training runs, live ones first: id, health, step, loss, learning rate, speed, newest evaluation, last action."""
        rows, problems = await anyio.to_thread.run_sync(self._runs.rows)
        rows.sort(key=lambda row: (not row["alive"], -(row["started"] or 0.0)))
        listed = [{name: for_json(row[name]) for name in _ROW if row.get(name) is not None} for row in rows]
        return {"runs": listed, "problems": problems}

    async def diagnose(self, run: str | None = None) -> dict[str, Any]:
        """What is wrong with a run, since which step, the likely causes with their evidence, fixes, and what was done."""
        if run is not None and self._runs.far(run) is not None:
            return await self._read(run, "/api/tab", lambda _: {}, tab="diagnosis")
        return await checkup_of(await self._find(run))

    async def explain(self, code: str) -> dict[str, Any]:
        """What a finding or cause means and how to fix it: a code such as non-finite-loss, or the text of an error message."""
        return {"about": await answer_of(["explain"], code)}

    async def query(self, sql: str, run: str | None = None, limit: int = 50) -> dict[str, Any]:
        """Read-only SQL (DuckDB) over a run, all ranks: columns and rows. TABLES"""
        limit = max(1, min(limit, _MOST_ROWS))

        def ask(watched: Watched) -> dict[str, Any]:
            answer = run_sql([LocalRun(watched.run)], sql, limit=limit, timeout=_SQL_SECONDS)
            return {"columns": answer.columns, "rows": answer.rows, "cut": answer.cut, "notes": answer.notes}

        return await self._here(run, ask)

    async def journal(self, run: str | None = None, last: int = 30, kind: str | None = None) -> dict[str, Any]:
        """The newest events of a run, newest first; kind: finding, action, change, checkpoint, diagnosis or eval."""
        answer = await self._read(run, "/api/tab", tabs.journal, tab="journal")
        names = ("time", "step", "kind", "code", "word", "words")
        events = [{name: event[name] for name in names} for event in answer["events"] if kind is None or event["kind"] == kind]
        return {"events": events[: max(1, min(last, 200))], "all": answer["all"]}

    async def curves(
        self, run: str | None = None, names: list[str] | None = None, points: int = 40, first: float | None = None,
        last: float | None = None, along: str = "step",
    ) -> dict[str, Any]:  # fmt: skip
        """Curves as numbers, thinned so that no spike is lost: loss, grad_norm, lr, step_seconds, data_seconds, host_rss,
        gpu_allocated, and every evaluation; `first` and `last` bound the steps, `bad` lists steps that were not finite."""
        if along not in AXES:
            raise ToolError(f"along is one of {', '.join(AXES)}")
        count = max(4, min(points, _MOST_POINTS))

        def read(watched: Watched) -> dict[str, Any]:
            return self._runs.curves(watched).answer(along=along, low=first, high=last, points=count)

        options = {"along": along, "points": str(count), **_ends(first, last)}
        answer = await self._read(run, "/api/curves", read, **options)
        every = {**answer["curves"], **answer["evaluations"]}
        if unknown := [name for name in names or () if name not in every]:
            raise ToolError(f"there is no curve {', '.join(unknown)}; there are {', '.join(every)}")
        return {"along": along, "rows": answer["rows"], "curves": {name: every[name] for name in names or every}}

    async def backtrace(self, run: str | None = None) -> dict[str, Any]:
        """Where every process of a live run is now, and whether it is stuck; the processes stop for some milliseconds."""
        watched = await self._find(run)
        answer = await answer_of(["backtrace", "--no-native"], str(watched.run.path))
        return {"verdict": answer["verdict"], "processes": [_process(process) for process in answer["processes"][:64]]}

    async def checkpoints(self, run: str | None = None) -> dict[str, Any]:
        """The checkpoints of a run: step, size, contents and whether each is complete; newest first."""
        watched = await self._find(run)
        rows = await checkpoints_of(watched.run.path)
        names = ("path", "step", "epoch", "size", "holds", "state", "troubles", "metric")
        return {"checkpoints": [{name: row.get(name) for name in names} for row in reversed(rows)][:50]}

    async def compare(self, runs: list[str], metric: str | None = None) -> dict[str, Any]:
        """Two or more runs on one metric: which is better, by how much, how sure that is, and which settings differ."""
        here = await anyio.to_thread.run_sync(self._runs.here)
        chosen = [here[name] if name in here else (await self._find(name)).run for name in runs]
        return await anyio.to_thread.run_sync(tabs.comparison, chosen, metric)

    async def doctor(self) -> dict[str, Any]:
        """Check this machine before a training: torch, GPU, driver, disk, memory, versions. What is wrong comes first."""
        answer = await answer_of(["doctor"], seconds=300.0)
        checks = sorted(answer["checks"], key=lambda check: check.get("state") in ("ok", "fine", "passed"))
        return {**{name: value for name, value in answer.items() if name != "checks"}, "checks": checks[:40]}

    async def validate(self, path: str) -> dict[str, Any]:
        """Check a data set (folder or file of any usual format) for what breaks a training: damage, wrong labels, leaks."""
        token, _ = WHO.get((None, ""))
        if token is not None and token.read_only:
            raise ToolError(f"the token of {token.name} may only read runs")
        answer: dict[str, Any] = await answer_of(["validate"], path, seconds=600.0)
        return answer

    async def _read(
        self, run: str | None, path: str, here: Callable[[Watched], dict[str, Any]], **options: str
    ) -> dict[str, Any]:
        """Of a run here by the function, of a run of another server by the path of its page."""
        far = self._runs.far(run) if run is not None else None
        if far is None:
            return await self._here(run, here)
        remote, name = far
        answer: dict[str, Any] = await anyio.to_thread.run_sync(lambda: remote.get(path, run=name, **options))  # type: ignore[arg-type]
        return answer

    async def _here(self, run: str | None, job: Callable[[Watched], dict[str, Any]]) -> dict[str, Any]:
        watched = await self._find(run)
        answer: dict[str, Any] = for_json(await anyio.to_thread.run_sync(job, watched))
        return answer

    async def _find(self, run: str | None) -> Watched:
        def find() -> Watched:
            if run is not None and self._runs.far(run) is not None:
                raise UsageError(f"{run} is a run of another server, which this tool cannot ask.", fix="start holdfast mcp there")
            newest = next(iter(self._runs.here()), None) if run is None else run
            if newest is None:
                raise UsageError("there is no run here.", fix="start one: holdfast run -- python train.py")
            return self._runs.find(newest)

        return await anyio.to_thread.run_sync(find)


class ChangingTools(Tools):
    """The tools that change a training; only with --allow-actions."""

    async def set(self, setting: str, run: str | None = None) -> dict[str, Any]:
        """Change a setting of a live training between two steps: lr=1e-4, lr*=0.1, weight_decay=0, clip=1.0, clip=off."""
        return await self._act(run, {"do": "set", "text": setting})

    async def save(self, run: str | None = None) -> dict[str, Any]:
        """Save a checkpoint of a live training at its next step."""
        return await self._act(run, {"do": "save"})

    async def rollback(self, to: str | None = None, run: str | None = None) -> dict[str, Any]:
        """Put a live training back to a checkpoint: a step, a name or best; the newest clean one if none is named."""
        return await self._act(run, {"do": "rollback", "to": to})

    async def pause(self, run: str | None = None) -> dict[str, Any]:
        """Pause a live training between two steps, until `resume`."""
        return await self._act(run, {"do": "pause"})

    async def resume(self, run: str | None = None) -> dict[str, Any]:
        """Let a paused training continue."""
        return await self._act(run, {"do": "continue"})

    async def undo(self, number: int, run: str | None = None) -> dict[str, Any]:
        """Undo a change, by the number that it has in the journal."""
        return await self._act(run, {"do": "undo", "number": number})

    async def eval(self, code: str, run: str | None = None) -> dict[str, Any]:
        """Run Python code inside a live training between two steps, on every rank; `model` and `optimizer` are there."""
        _check_may_change()
        watched = await self._find(run)
        answers = await anyio.to_thread.run_sync(lambda: evaluate(ranks_to_ask(watched.run), code, now=False, seconds=30.0))
        return {"answers": [for_json({"rank": answer.recording.rank, **answer.answer}) for answer in answers]}

    async def _act(self, run: str | None, body: dict[str, Any]) -> dict[str, Any]:
        _check_may_change()
        watched = await self._find(run)
        answer = await anyio.to_thread.run_sync(acting.act, watched.run, body, _who())
        return {"command": answer["command"], "ok": answer["ok"], "answers": for_json(answer["answers"])}


_READING = (
    *("list_runs", "diagnose", "explain", "query", "journal", "curves", "backtrace", "checkpoints", "compare", "doctor"),
    "validate",
)
_CHANGING = ("set", "save", "rollback", "pause", "resume", "undo", "eval")


def mcp_server(runs: Runs, *, allow_actions: bool = False) -> MCPServer[Any]:
    """The server with its tools; it speaks over stdio (`run("stdio")`) or HTTP (`streamable_http_app`)."""
    server: MCPServer[Any] = MCPServer("holdfast", version=__version__, instructions=_INSTRUCTIONS, log_level="CRITICAL")
    tools: Tools = ChangingTools(runs) if allow_actions else Tools(runs)
    for name in (*_READING, *(_CHANGING if allow_actions else ())):
        method = getattr(tools, name)
        description = " ".join((method.__doc__ or "").split()).replace("TABLES", _tables())
        server.add_tool(_in_words(method), name=name, description=description)
    return server


def over_http(server: MCPServer[Any]) -> Any:
    """What handles the requests at `/mcp`; each call stands for itself. The gate has checked Host and Origin before."""
    of_gate = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    server.streamable_http_app(stateless_http=True, json_response=True, transport_security=of_gate)
    return server.session_manager


def _in_words(method: Callable[..., Any]) -> Callable[..., Any]:
    """The tool, with Holdfast's errors as the text that the agent reads."""

    @functools.wraps(method)
    async def call(*args: Any, **named: Any) -> Any:
        try:
            return await method(*args, **named)
        except HoldfastError as error:
            raise ToolError(f"{error.problem} fix: {error.fix}") from error

    return call


def _tables() -> str:
    return "Tables: " + "; ".join(f"{name}({', '.join(table.column_names)})" for name, table in TABLES.items())


def _ends(first: float | None, last: float | None) -> dict[str, str]:
    return {name: str(value) for name, value in (("from", first), ("to", last)) if value is not None}


def _process(row: dict[str, Any]) -> dict[str, Any]:
    threads = [
        {
            "name": thread.get("name"),
            "active": thread.get("active"),
            "frames": [_frame(frame) for frame in (thread.get("frames") or ())[:12]],
        }
        for thread in (row.get("threads") or ())[:8]
    ]
    return {"role": row.get("role"), "pid": row.get("pid"), "state": row.get("state"), "threads": threads}


def _frame(row: dict[str, Any]) -> str:
    return f"{row.get('func')} ({row.get('file')}:{row.get('line')})"[:_TEXT]


def _who() -> str:
    token, address = WHO.get((None, ""))
    if token is not None:
        return f"{token.name} from {address} (MCP)"
    return f"{who()} (MCP)"


def _check_may_change() -> None:
    token, _ = WHO.get((None, ""))
    if token is not None and token.read_only:
        raise ToolError(f"the token of {token.name} may only read")
