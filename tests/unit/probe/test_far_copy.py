"""A server that is not ours names its runs and tables: nothing is written outside of the folder for copies."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from every_case import every_case

from holdfast.errors import HoldfastError
from holdfast.probe.far_copy import copies
from holdfast.probe.remote import _SPEAKS


class Hostile(BaseHTTPRequestHandler):
    """Answers as a server of Holdfast does, with a name that leads elsewhere."""

    name = ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        answers = {"/v1/runs": {"host": "far", "server": "s", "runs": [{"name": self.name, "id": "1"}]}}
        rest = {"/v1/hello": {"protocol": _SPEAKS}, "/v1/info": {self.name: {}}, "/v1/journal": {self.name: {"rows": []}}}
        body = json.dumps({**answers, **rest}.get(self.path.partition("?")[0], {})).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@every_case("name", ["../../victim", "/tmp/victim", "..", ".hidden", "a/b", "a\\b", ""])
def test_a_name_that_leads_elsewhere_is_refused(served: str, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", "0123456789abcdef")
    monkeypatch.setattr(Hostile, "name", name)
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    with pytest.raises(HoldfastError):
        list(copies(served, inside))
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b"]
