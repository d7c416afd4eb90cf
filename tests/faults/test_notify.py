"""`--notify`: a critical finding, a restart and the end are told, and no server delays the run."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from holdfast_run import PYTHON, findings_of, run, wait_until

DIES_ONCE = """
import os, signal, time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 30 and os.environ.get("HOLDFAST_ATTEMPT", "1") == "1":
        os.kill(os.getpid(), signal.SIGKILL)
"""


class Server:
    """A local server that answers only when it may."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.may_answer = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                outer.may_answer.wait()
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def notifying(folder: Path) -> list[psutil.Process]:
    """The processes that send the notifications of a run."""
    words = ["holdfast.integrations.beside", str(folder / "runs" / "told"), "notify"]
    return [one for one in psutil.process_iter() if _words(one)[-3:] == words]


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


@pytest.mark.slow
def test_a_finding_a_restart_and_the_end_are_told_to_a_command(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DIES_ONCE)
    command = "cat >> told.jsonl; echo >> told.jsonl; echo $HOLDFAST_EVENT $HOLDFAST_EVENT_CODE >> variables.txt"
    words = ["--name", "told", "--policy", "heal", "--notify", command, "--to", "tensorboard"]
    done = run(tmp_path, *words, "--", PYTHON, "train.py", env={"HOLDFAST_BACK_OFF": "0"})
    assert done.returncode == 0, done.stderr
    wait_until(lambda: not notifying(tmp_path))
    events = [json.loads(line) for line in (tmp_path / "told.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["finding", "restart", "end"]
    assert [event["run"] for event in events] == ["told"] * 3 and events[2]["exit_code"] == 0
    assert events[0]["code"] == "process-died" and events[0]["step"] == 30 and "SIGKILL" in events[0]["text"]
    assert (tmp_path / "variables.txt").read_text().splitlines() == [
        "finding process-died",
        "restart process-died",
        "end finished",
    ]
    assert "told.jsonl" not in (tmp_path / "runs" / "told" / "run.json").read_text(), "an address can be a secret"


def test_a_slow_server_and_one_that_is_gone_delay_nothing(tmp_path: Path, server: Server) -> None:
    gone = "http://127.0.0.1:9/hook?token=secret"
    words = ["--name", "told", "--notify", server.url, "--notify", gone, "--", PYTHON, "-c", "raise SystemExit(3)"]
    assert run(tmp_path, *words).returncode == 3
    assert notifying(tmp_path), "the run has waited for the server"
    server.may_answer.set()
    wait_until(lambda: not notifying(tmp_path))
    assert {(event["event"], event["exit_code"], event["host"]) for event in server.got} == {("end", 3, os.uname().nodename)}
    said = " ".join(
        row["evidence"]["error"] for row in findings_of(tmp_path / "runs" / "told") if row["code"] == "holdfast-degraded"
    )
    assert "127.0.0.1/…: " in said and "refused" in said and "secret" not in said
