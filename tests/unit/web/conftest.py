from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from holdfast_run import PYTHON, VICTIMS, start, wait_until
from small_server import make_run, own_token

from holdfast.probe.control_client import listening
from holdfast.probe.serve import tokens
from holdfast.probe.serve.limits import Limits
from holdfast.probe.serve.server import Server
from holdfast.probe.target import registered_runs
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES
from holdfast.web.start import Settings, serving

READER = tokens.make("ro_0123456789abcdef", "reader")
WRITER = tokens.make("hf_0123456789abcdef", "writer")


class Answer(NamedTuple):
    """Status, headers and content of an answer."""

    status: int
    headers: http.client.HTTPMessage
    content: Any


@pytest.fixture(autouse=True)
def own_registry(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Live runs of this machine are not those of the test."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of two ranks, NaN at step 7, with a finding and an action about it."""
    run = make_run(tmp_path_factory.mktemp("runs"), "first", ended=1100.0, exit_code=0)
    evidence = {"loss": float("nan"), "parameter": "head.weight"}
    run.journal.write("finding", code="non-finite-loss", severity="critical", step=7, rank=0, evidence=evidence)
    run.journal.write("action", action="skip-batch", state="done", step=7, rank=0, because="non-finite-loss", settings={})
    return run


@pytest.fixture
def server(run: RunFolder) -> Iterator[Server]:
    with page_of(run) as server:
        server.tokens += [READER, WRITER]
        yield server


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunFolder]:
    """A training under `holdfast run --policy guard`, until the test ends."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    words = ("--name", "watched", "--policy", "guard", "--", PYTHON, str(VICTIMS / "trains_while_watched.py"))
    process = start(tmp_path, *words)
    wait_until(lambda: any(listening(run) for run in registered_runs()))
    yield registered_runs()[0]
    (tmp_path / "stop").touch()
    process.communicate(timeout=600)


def page_of(*runs: RunFolder, limits: dict[str, Any] | None = None, **settings: Any) -> Any:
    """A server of these runs on a free port."""
    made = Limits(**{"wrong_token_seconds": 0.0, "requests_at_once": 1000, **(limits or {})})
    return serving(Settings(listen="127.0.0.1:0", limits=made, **settings), lambda: list(runs))


@pytest.fixture
def ask(server: Server) -> Callable[..., Answer]:
    """Ask the server of the test."""
    return lambda *words, **named: request(server, *words, **named)


def request(
    server: Server, path: str, body: Any = None, *, token: str | None = "own", method: str | None = None, **headers: str
) -> Answer:
    """One request; `token` None sends none."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    if token is not None:
        headers["Authorization"] = f"Bearer {own_token(server) if token == 'own' else token}"
    try:
        connection.request(
            method or ("GET" if body is None else "POST"), path, None if body is None else json.dumps(body), headers
        )
        response = connection.getresponse()
        answer = response.read()
        is_json = response.headers.get("Content-Type") == "application/json"
        return Answer(response.status, response.headers, json.loads(answer) if is_json else answer)
    finally:
        connection.close()


def cookie_of(server: Server) -> str:
    """Sign in as a browser does."""
    answer = request(server, "/api/login", {"token": own_token(server)}, token=None, Origin=origin(server))
    assert answer.status == 200
    return answer.headers["Set-Cookie"].split(";")[0]


def origin(server: Server) -> str:
    """What a page of the server says of itself."""
    return f"http://127.0.0.1:{server.port}"


def make_steps(folder: Path, name: str, losses: Any, evaluations: Any = (), **columns: Any) -> RunFolder:
    """A finished run of one rank with these losses, other columns, and (step, name, value) of evaluations."""
    run = RunFolder.create(folder, name, started=1000.0, ended=1000.0 + len(losses), exit_code=0)
    recorder = Recorder.start(run, 0)

    def add(table: str, **row: Any) -> None:
        recorder.table(table).append([row.get(one.name, one.kind.missing) for one in TABLES[table].columns])

    for step, loss in enumerate(losses):
        more = {column: values[step] for column, values in columns.items()}
        add("steps", step=step, epoch=step // 100, loss=float(loss), time=1000.0 + step, **{"lr": 0.1, **more})
    code = recorder.strings.code
    for step, metric, value in evaluations:
        add("evaluations", step=step, epoch=step // 100, split=code("val"), name=code(metric), value=value, time=1000.0 + step)
    recorder.close()
    return run
