"""What the tests of servers and clients share: a small run, a server of it in this process, and a client without manners."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from holdfast.probe.serve.limits import Limits
from holdfast.probe.serve.server import Server
from holdfast.probe.serve.tokens import Token, local_file, read_file
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES
from holdfast.web.start import Settings, serving

Raw = socket.socket


def make_run(folder: Path, name: str = "run", *, ranks: int = 2, steps: int = 100, first: int = 0, **info: Any) -> RunFolder:
    """A run that is over: ranks from `first` on, the loss of a step is its number, NaN at step 7."""
    run = RunFolder.create(folder, name, **{"started": 1000.0, "host": name, **info})
    for rank in range(first, first + ranks):
        recorder = Recorder.start(run, rank)
        for step in range(steps):
            loss = float("nan") if step == 7 else float(step)
            row = {"step": step, "loss": loss, "time": float(step), "samples": 2}
            recorder.table("steps").append([row.get(one.name, one.kind.missing) for one in TABLES["steps"].columns])
        code = recorder.strings.code
        row = {"step": 1, "split": code("valid"), "name": code(f"metric {rank}"), "value": 0.5, "time": 1.0}
        recorder.table("evaluations").append([row.get(one.name, one.kind.missing) for one in TABLES["evaluations"].columns])
        recorder.close()
    return run


@contextlib.contextmanager
def served(*runs: RunFolder, tokens: tuple[Token, ...] = (), listen: str = "127.0.0.1:0", **limits: Any) -> Iterator[Server]:
    """A server of these runs on a free port."""
    settings = Settings(listen=listen, limits=Limits(**limits))
    with serving(settings, lambda: list(runs)) as server:
        server.tokens += tokens
        yield server


def own_token(server: Server) -> str:
    """The token that the server left for its own user."""
    return read_file(local_file(server.port))[0].text


def ask(
    server: Server, method: str, path: str, body: bytes | None = None, *, token: str | None = "own", **headers: str
) -> tuple[int, Any]:
    """Status and answer of one request; `token` None sends none."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    try:
        if token is not None:
            headers["Authorization"] = f"Bearer {own_token(server) if token == 'own' else token}"
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        content = response.read()
        is_json = response.headers.get("Content-Type") == "application/json"
        return response.status, json.loads(content) if is_json else content
    finally:
        connection.close()


def connect(server: Server) -> Raw:
    """A connection that nothing was sent on."""
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def is_shut(connection: Raw) -> bool:
    """Whether the server ends it, whatever it sends before."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


@contextlib.contextmanager
def impostor(*answers: bytes | Callable[[bytes], bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """A server that gives these answers, one for each request on a connection; what it was sent is kept.

    An answer may depend on what was asked. It hangs up when it has given all of them, or one that was no greeting.
    """
    heard: list[bytes] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def work() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection, contextlib.suppress(OSError):
                    for answer in answers:
                        if data := connection.recv(65536):
                            heard.append(data)
                            connection.sendall(answer(data) if callable(answer) else answer)
                        if b"/v1/hello" not in data:
                            break

    threading.Thread(target=work, daemon=True).start()
    try:
        yield int(listening.getsockname()[1]), heard
    finally:
        listening.close()


def http_answer(content: Any, *, status: str = "200 OK") -> bytes:
    """An answer as a server would send it."""
    text = json.dumps(content).encode()
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\nContent-Type: application/json\r\n\r\n%b" % (status.encode(), len(text), text)
