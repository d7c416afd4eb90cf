"""What the page asks: rows, curves, marks, tabs, comparisons and live values, as the server gives them."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from every_case import every_case
from holdfast_run import wait_until
from small_server import make_run, own_token

from holdfast.probe.serve.server import Server
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES

from .conftest import make_steps, page_of, request


def test_a_run_is_listed_with_its_figures_and_its_last_action(ask: Any) -> None:
    (row,) = ask("/api/runs").content["runs"]
    assert (row["id"], row["step"], row["loss"], row["ranks"], row["tone"]) == ("first", 99, 99.0, 2, "over")
    assert row["action"]["words"].startswith("update skipped") and row["findings"] == 1 and None in row["spark"]


def test_two_runs_of_one_name_can_be_told_apart(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / folder, "same", ranks=1, steps=3) for folder in ("a", "b")]
    with page_of(*runs) as server:
        ids = [row["id"] for row in request(server, "/api/runs").content["runs"]]
        assert len(set(ids)) == 2 and all(one.startswith("same~") for one in ids)
        assert request(server, f"/api/run?run={ids[1]}").content["row"]["folder"].endswith("b/same")


def test_fifty_runs_are_listed(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"run-{number}", ranks=1, steps=3) for number in range(50)]
    with page_of(*runs) as server:
        assert len(request(server, "/api/runs").content["runs"]) == 50


def test_the_curve_shows_where_the_loss_was_nan_and_the_mark_says_what_it_was(ask: Any) -> None:
    answer = ask("/api/curves?run=first").content
    assert answer["curves"]["loss"]["bad"] == [7] and answer["marks"] == [7, 7]
    found, done = ask("/api/run?run=first").content["marks"]
    assert (found["kind"], found["tone"], found["step"]) == ("finding", "bad", 7) and "head.weight" in found["words"]
    assert done["kind"] == "action" and "skipped" in done["words"]


def test_a_long_run_comes_in_few_points_and_a_zoom_shows_them_all(tmp_path: Path) -> None:
    losses = np.linspace(2.0, 1.0, 20_000)
    losses[777] = 50.0
    with page_of(make_steps(tmp_path, "long", losses)) as server:
        whole = request(server, "/api/curves?run=long&points=200").content["curves"]["loss"]
        assert len(whole["x"]) <= 210 and 777 in whole["x"] and max(whole["y"]) == 50.0
        near = request(server, "/api/curves?run=long&points=200&from=770&to=780").content["curves"]["loss"]
        assert near["x"] == list(range(769, 782))
        smooth = request(server, "/api/curves?run=long&points=200&smooth=100").content["curves"]["loss"]
        assert max(smooth["smooth_y"]) < 3.0


@every_case("query", ["", "run=", "run=none", "run=../first", "run=first&from=x&points=1e99", "run=first&points=-5&smooth=nan"])
def test_a_question_that_makes_no_sense_gets_an_answer_in_words(ask: Any, query: str) -> None:
    answer = ask(f"/api/curves?{query}")
    assert answer.status == 200 if "first&" in query else answer.status == 400 and answer.content["fix"]


def test_every_tab_answers(ask: Any) -> None:
    def tab(name: str) -> Any:
        answer = ask(f"/api/tab?run=first&tab={name}")
        assert answer.status == 200, answer.content
        return answer.content

    diagnosis = tab("diagnosis")
    assert diagnosis["verdict"] == "ill" and diagnosis["episodes"][0]["findings"][0]["code"] == "non-finite-loss"
    assert [event["step"] for event in tab("journal")["events"]] == [7, 7]
    assert [line["name"] for line in tab("ranks")["lines"]] == ["rank 0", "rank 1"]
    assert "bad" in ask("/api/tab?run=first&tab=ranks&what=loss").content["lines"][0]["values"]
    assert tab("parameters")["lines"] == [] and tab("modules")["modules"] == [] and tab("data")["fields"] == []
    assert tab("environment")["info"]["name"] == "first"
    assert ask("/api/tab?run=first&tab=passwords").status == 400


def test_parameters_come_as_a_grid_with_what_was_not_finite(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run", started=1.0)
    recorder = Recorder.start(run, 0)
    for step in range(0, 240, 2):
        for name, norm in (("a.weight", 1.0 + step), ("b.weight", float("nan") if step == 100 else 0.5)):
            row = {"step": step, "name": recorder.strings.code(name), "grad_norm": norm, "non_finite": int(norm != norm)}
            recorder.table("parameters").append([row.get(one.name, one.kind.missing) for one in TABLES["parameters"].columns])
    recorder.close()
    with page_of(run) as server:
        grid = request(server, "/api/tab?run=run&tab=parameters").content
    lines = {line["name"]: line["values"] for line in grid["lines"]}
    assert (grid["low"], grid["high"]) == (0, 238) and set(lines) == {"a.weight", "b.weight"}
    assert lines["b.weight"].count("bad") == 1 and lines["a.weight"][-1] == 239.0


def events_of(server: Server, path: str) -> Iterator[Any]:
    """The server-sent events of a path, as they come."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", path, headers={"Authorization": f"Bearer {own_token(server)}"})
    response = connection.getresponse()
    assert response.headers["Content-Type"].startswith("text/event-stream")
    try:
        while line := response.readline():
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))
    finally:
        connection.close()


def test_new_rows_and_new_findings_come_by_themselves(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "live", started=1.0)
    recorder = Recorder.start(run, 0)

    def step(number: int) -> None:
        row = {"step": number, "loss": 0.5, "time": float(number)}
        recorder.table("steps").append([row.get(one.name, one.kind.missing) for one in TABLES["steps"].columns])

    step(0)
    with page_of(run) as server:
        news = events_of(server, "/api/live?run=live&after=0&marks=0")
        assert next(news)["points"]["curves"]["loss"]["x"] == [0]
        step(1)
        run.journal.write("finding", code="loss-spike", severity="warning", step=1, rank=0, evidence={"loss": 9.0})
        seen: list[Any] = []
        wait_until(lambda: seen.append(next(news)) or any(one["marks"] for one in seen))  # type: ignore[func-returns-value]
        assert [x for one in seen for x in one["points"]["curves"].get("loss", {"x": []})["x"]] == [1]
        assert [mark["code"] for one in seen for mark in one["marks"]] == ["loss-spike"]
        news.close()
    recorder.close()


def test_a_run_whose_loss_is_nan_is_not_sent_again_and_again(tmp_path: Path) -> None:
    from holdfast.web.live import of_all
    from holdfast.web.runs import Runs

    run = make_steps(tmp_path, "nan", [1.0, float("nan")])
    sent = of_all(Runs(lambda: [run], ()), 3.0).body_iterator  # for 2.4 s, a look each second

    async def read() -> list[Any]:
        return [piece async for piece in sent]

    assert sum(bytes(piece).startswith(b"data: ") for piece in asyncio.run(read())) == 1


def test_a_run_of_another_server_is_shown_with_its_curves_and_tabs(run: RunFolder, tmp_path: Path) -> None:
    with page_of(run) as there, page_of(far=(f"127.0.0.1:{there.port}",)) as here:
        (row,) = request(here, "/api/runs").content["runs"]
        assert row["id"] == f"127.0.0.1:{there.port}/first" and row["step"] == 99
        assert request(here, f"/api/curves?run={row['id']}").content["curves"]["loss"]["bad"] == [7]
        assert request(here, f"/api/tab?run={row['id']}&tab=journal").content["all"] == 2
        assert next(events_of(here, f"/api/live?run={row['id']}"))["row"]["name"] == "first"


def test_a_server_that_is_away_is_named_and_the_others_are_listed(run: RunFolder) -> None:
    with page_of(run, far=("127.0.0.1:1",)) as server:
        answer = request(server, "/api/runs").content
        assert len(answer["runs"]) == 1 and "127.0.0.1:1 cannot be reached" in answer["problems"][0]


@pytest.mark.slow
def test_runs_are_compared_by_the_same_judge_as_on_the_command_line(tmp_path: Path) -> None:
    runs = [make_steps(tmp_path, name, np.linspace(2.0, end, 400)) for name, end in (("base", 1.0), ("other", 0.5))]
    with page_of(*runs) as server:
        answer = request(server, "/api/compare?run=base&run=other").content
        assert [row["name"] for row in answer["runs"]] == ["base", "other"] and answer["differences"][0]["words"]
        assert request(server, "/api/compare?run=base").status == 400
        assert request(server, "/api/compare?run=base&run=--html").status == 400


@pytest.mark.slow
def test_a_run_here_is_compared_with_one_of_another_server(tmp_path: Path) -> None:
    ours, theirs = (make_steps(tmp_path, name, np.linspace(2.0, end, 400)) for name, end in (("ours", 1.0), ("theirs", 0.5)))
    with page_of(theirs) as there, page_of(ours, far=(f"127.0.0.1:{there.port}",)) as here:
        answer = request(here, f"/api/compare?run=ours&run=127.0.0.1:{there.port}/theirs")
        assert answer.status == 200, answer.content
        assert [row["name"] for row in answer.content["runs"]] == ["ours", "theirs"]


@pytest.mark.slow
def test_a_run_without_checkpoints_has_none_and_that_is_no_error(ask: Any) -> None:
    assert ask("/api/checkpoints?run=first").content == {"checkpoints": []}


@every_case(
    "body",
    [
        {},
        {"do": "eval"},
        {"do": "set"},
        {"do": "set", "text": "lr"},
        {"do": "undo"},
        {"do": ["pause"]},
        {"do": "rollback", "to": "../x"},
    ],
)
def test_an_action_that_makes_no_sense_is_refused_in_words(run: RunFolder, body: Any) -> None:
    with page_of(run, allow_actions=True) as server:
        answer = request(server, "/api/act?run=first", body)
        assert answer.status == 400 and answer.content["fix"]


def test_an_exported_page_holds_its_answers_and_nothing_that_ends_its_script(tmp_path: Path) -> None:
    from holdfast.web.export import exported

    run = make_run(tmp_path, "sent", ranks=1, steps=9, ended=1100.0, exit_code=0)
    run.journal.write("change", do="set", what="</script><script>alert(1)</script>", step=3, rank=0)
    page = exported(run)
    assert "<script>alert" not in page and "/static/" not in page and "http-equiv" not in page
    (content,) = re.findall(r"globalThis.HOLDFAST = (.*?);</script>", page)
    answers = json.loads(content)["answers"]
    assert answers["curves step"]["curves"]["loss"]["bad"] == [7] and answers["tab ranks loss"]["lines"]
