"""A server that has answered and does so no more is told, once; what never answered, or answers again, is not."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch

from holdfast.inside.arm import armed
from holdfast.signals.run_folder import RunFolder


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.server.silent:  # type: ignore[attr-defined]
            self.close_connection = True
            return
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as one:
        one.silent = False  # type: ignore[attr-defined]
        threading.Thread(target=one.serve_forever, args=(0.01,), daemon=True).start()
        yield one
        one.shutdown()


def ask(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
    except OSError:
        return False
    return True


def train(steps: int = 3) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def findings(folder: RunFolder) -> list[dict[str, Any]]:
    return [row for row in folder.journal if row["kind"] == "finding"]


def test_a_server_that_stops_to_answer_is_told_once_with_its_error(
    run: Callable[..., RunFolder], server: ThreadingHTTPServer
) -> None:
    folder = run()
    train()
    assert ask(server.server_port)
    server.silent = True  # type: ignore[attr-defined]
    assert [ask(server.server_port) for _ in range(5)] == [False] * 5
    (found,) = findings(folder)
    assert found["code"] == "tracker-unreachable" and found["severity"] == "warning" and found["step"] == 3
    assert found["evidence"]["server"] == f"127.0.0.1:{server.server_port}" and "RemoteDisconnected" in found["evidence"]["error"]


def test_a_server_that_is_shut_down_is_told(run: Callable[..., RunFolder], server: ThreadingHTTPServer) -> None:
    folder = run()
    train()
    assert ask(server.server_port)
    server.shutdown()
    server.socket.close()
    assert not ask(server.server_port) and not ask(server.server_port)
    (found,) = findings(folder)
    assert "ConnectionRefusedError" in found["evidence"]["error"]


def test_looking_for_a_server_that_never_was_there_is_no_finding(run: Callable[..., RunFolder]) -> None:
    folder = run()
    train()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as nobody:
        port = nobody.server_port
    assert [ask(port) for _ in range(5)] == [False] * 5
    assert findings(folder) == []


def test_a_single_failure_and_one_before_the_first_step_are_no_finding(
    run: Callable[..., RunFolder], server: ThreadingHTTPServer
) -> None:
    folder = run()
    for silent in (False, True, True, False):
        server.silent = silent  # type: ignore[attr-defined]
        assert ask(server.server_port) is not silent
    train()
    for silent in (False, True, False, True, False):
        server.silent = silent  # type: ignore[attr-defined]
        ask(server.server_port)
    assert findings(folder) == []


def test_everything_is_as_it_was_after_the_run(run: Callable[..., RunFolder], server: ThreadingHTTPServer) -> None:
    import http.client
    import socket

    before = (socket.getaddrinfo, http.client.HTTPConnection.getresponse)
    run()
    assert (socket.getaddrinfo, http.client.HTTPConnection.getresponse) != before and ask(server.server_port)
    armed().close_all()
    assert (socket.getaddrinfo, http.client.HTTPConnection.getresponse) == before and ask(server.server_port)
