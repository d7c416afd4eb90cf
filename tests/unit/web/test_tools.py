"""The MCP tools, asked by the official SDK's own client: in this process, over HTTP, and over stdio as an agent starts them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from every_case import every_case
from holdfast_run import wait_until
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from small_server import own_token

from holdfast.signals.run_folder import RunFolder
from holdfast.web.runs import Runs
from holdfast.web.tools import mcp_server

from .conftest import READER, make_steps, page_of

READING = {
    *(
        "list_runs",
        "diagnose",
        "explain",
        "query",
        "journal",
        "curves",
        "backtrace",
        "checkpoints",
        "compare",
        "doctor",
        "validate",
    ),
}
CHANGING = {"set", "save", "rollback", "pause", "resume", "undo", "eval"}


def asked(server: Any, job: Callable[[Client], Awaitable[Any]]) -> Any:
    """Do a job with a client of a server."""

    async def work() -> Any:
        async with Client(server) as client:
            return await job(client)

    return asyncio.run(work())


def call(served: list[RunFolder], name: str, /, **arguments: Any) -> Any:
    """What a tool answers; an error is its text."""
    server = mcp_server(Runs(lambda: served, ()))
    answer = asked(server, lambda client: client.call_tool(name, arguments))
    return answer.content[0].text if answer.is_error else answer.structured_content


@every_case("allow_actions", [False, True])
def test_changing_tools_are_there_only_with_allow_actions(allow_actions: bool) -> None:
    server = mcp_server(Runs(list, ()), allow_actions=allow_actions)
    tools = asked(server, lambda client: client.list_tools()).tools
    assert {tool.name for tool in tools} == (READING | CHANGING if allow_actions else READING)
    assert all(tool.description and len(tool.description) < 2500 for tool in tools)


def test_a_nan_is_found_and_explained_in_three_calls(run: RunFolder) -> None:
    (row,) = call([run], "list_runs")["runs"]
    assert row["id"] == "first" and row["findings"] == 1
    answer = call([run], "diagnose", run=row["id"])
    finding = answer["episodes"][0]["findings"][0]
    assert (finding["code"], finding["step"]) == ("non-finite-loss", 7) and answer["episodes"][0]["done"]
    about = call([run], "explain", code=finding["code"])["about"]
    assert about["code"] == "non-finite-loss" and "NaN" in about["page"]


def test_sql_only_reads_and_is_cut(run: RunFolder) -> None:
    answer = call([run], "query", sql="SELECT step, loss FROM steps WHERE rank = 0 ORDER BY step", limit=8)
    assert answer["rows"][7] == [7, "nan"] and answer["cut"] and len(answer["rows"]) == 8
    assert "only reads" in call([run], "query", sql="DROP TABLE steps")
    assert "near it: loss" in call([run], "query", sql="SELECT los FROM steps")


def test_journal_and_curves_are_short(run: RunFolder) -> None:
    assert [one["kind"] for one in call([run], "journal", kind="finding")["events"]] == ["finding"]
    answer = call([run], "curves", names=["loss"], points=10)
    assert (
        list(answer["curves"]) == ["loss"] and len(answer["curves"]["loss"]["x"]) <= 14 and answer["curves"]["loss"]["bad"] == [7]
    )
    assert "there is no curve accuracy; there are loss" in call([run], "curves", names=["accuracy"])


def test_a_run_that_is_not_there_is_told_with_the_fix(run: RunFolder) -> None:
    assert "there is no run 'other' here" in call([run], "diagnose", run="other")
    assert "holdfast run" in call([], "diagnose")


@pytest.mark.slow
def test_runs_are_compared_and_stacks_are_taken(tmp_path: Path) -> None:
    runs = [make_steps(tmp_path, name, np.linspace(2.0, end, 400)) for name, end in (("base", 1.0), ("other", 0.5))]
    assert call(runs, "compare", runs=["base", "other"])["metric"] == "loss"
    assert call(runs, "backtrace", run="base")["verdict"]["say"]  # of this process: it recorded them


@pytest.mark.slow
def test_doctor_validate_and_checkpoints_answer(tmp_path: Path, run: RunFolder) -> None:
    (tmp_path / "rows.csv").write_text("a,label\n" + "\n".join(f"{n},{n % 2}" for n in range(50)))
    assert call([run], "validate", path=str(tmp_path / "rows.csv"))
    assert call([run], "doctor")["checks"]
    assert call([run], "checkpoints") == {"checkpoints": []}


@pytest.mark.slow
def test_an_agent_changes_saves_pauses_and_rolls_back_a_live_training_and_the_journal_tells_who(live: RunFolder) -> None:
    server = mcp_server(Runs(lambda: [live], ()), allow_actions=True)

    def act(name: str, **arguments: Any) -> Any:
        answer = asked(server, lambda client: client.call_tool(name, arguments))
        assert not answer.is_error and answer.structured_content.get("ok", True), answer
        return answer.structured_content["answers"][0]

    assert act("eval", code="optimizer.param_groups[0]['lr']")["value"] == "0.05"
    weights = "model[0].weight.double().sum().item()"
    act("pause")
    saved, before = act("save"), act("eval", code=weights)["value"]
    act("resume")
    number = act("set", setting="lr=0.01")["number"]
    wait_until(lambda: act("eval", code=weights)["value"] != before)
    act("pause")
    assert act("rollback", to=str(saved["step"]))["to"] == saved["step"]
    assert act("eval", code=weights)["value"] == before
    act("undo", number=number)
    act("resume")
    assert act("eval", code="optimizer.param_groups[0]['lr']")["value"] == "0.05"
    rows = [row for row in live.journal if row["kind"] == "change"]
    assert [row["do"] for row in rows] == ["pause", "save", "continue", "set", "pause", "rollback", "undo", "continue"]
    assert all(row["who"].endswith(" (MCP)") for row in rows)


def over_http(server: Any, token: str, job: Callable[[Client], Awaitable[Any]]) -> Any:
    async def work() -> Any:
        http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"})
        async with http, Client(streamable_http_client(f"http://127.0.0.1:{server.port}/mcp", http_client=http)) as client:
            return await job(client)

    return asyncio.run(work())


def test_over_http_the_same_tools_answer_whoever_has_a_token(run: RunFolder) -> None:
    with page_of(run) as server:
        answer = over_http(server, own_token(server), lambda client: client.call_tool("diagnose", {"run": "first"}))
        assert answer.structured_content["episodes"][0]["findings"][0]["code"] == "non-finite-loss"


def test_over_http_a_token_that_may_only_read_changes_nothing(run: RunFolder) -> None:
    with page_of(run, allow_actions=True) as server:
        server.tokens.append(READER)
        refused = over_http(server, READER.text, lambda client: client.call_tool("pause", {"run": "first"}))
        assert refused.is_error and "reader may only read" in refused.content[0].text
        theirs = over_http(server, own_token(server), lambda client: client.call_tool("pause", {"run": "first"}))
        assert theirs.is_error and "training is over" in theirs.content[0].text


@pytest.mark.slow
def test_an_agent_starts_it_over_stdio(run: RunFolder) -> None:
    words = ["-m", "holdfast", "mcp", "-t", str(run.path)]
    server = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
    answer = asked(server, lambda client: client.call_tool("list_runs", {}))
    assert [row["id"] for row in answer.structured_content["runs"]] == ["first"]
