"""A server holds its ground against clients of every kind. It runs in this process; the clients are sockets."""

from __future__ import annotations

import contextlib
import http.client
import math
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from every_case import every_case
from holdfast_run import wait_until
from small_server import ask, connect, is_shut, make_run, own_token, served

from holdfast.errors import Unreachable, UsageError
from holdfast.probe.address import Address
from holdfast.probe.remote import Remote
from holdfast.probe.serve import tokens
from holdfast.probe.serve.limits import Connections, Limits, Rate
from holdfast.probe.serve.server import Server
from holdfast.signals.run_folder import RunFolder
from holdfast.web.start import Settings, serving

READER = tokens.make("ro_0123456789abcdef", "reader")
WRITER = tokens.make("hf_0123456789abcdef", "writer")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def server(run: RunFolder) -> Iterator[Server]:
    with served(run, tokens=(READER, WRITER), wrong_token_seconds=0.05, body_bytes=1000) as one:
        yield one


def test_it_does_not_listen_beyond_this_machine_without_a_token(run: RunFolder) -> None:
    with pytest.raises(UsageError, match="a token is required") as caught, serving(Settings(listen="0.0.0.0:0"), lambda: [run]):
        pass
    assert "--new-token" in caught.value.fix


def test_beyond_this_machine_it_says_what_is_missing_without_tls(run: RunFolder, tmp_path: Path) -> None:
    tokens.add_to_file(tmp_path / "tokens")
    said: list[str] = []
    with serving(Settings(listen="0.0.0.0:0", token_file=tmp_path / "tokens"), lambda: [run], say=said.append):
        pass
    assert len(said) == 1 and "without TLS" in said[0]


@every_case("listen", ["8080x", "127.0.0.1", "no.such.host.invalid:80", "127.0.0.1:99999", ""])
def test_an_address_that_is_none_is_refused_in_words(run: RunFolder, listen: str) -> None:
    with pytest.raises(UsageError) as caught, serving(Settings(listen=listen), lambda: [run]):
        pass
    assert "--listen" in caught.value.fix


def test_a_port_that_is_taken_is_told(run: RunFolder, server: Server) -> None:
    with pytest.raises(UsageError, match="cannot listen") as caught, served(run, listen=f"127.0.0.1:{server.port}"):
        pass
    assert "the port is in use" in caught.value.fix


@every_case("token", [None, "", "hf_0123456789abcdeX", "hf_0123456789abcdef0", "x" * 5000])
@every_case("path", ["/v1/runs", "/v1/tables/steps/rows", "/v1/journal"])
def test_nothing_is_told_without_the_right_token(server: Server, token: str | None, path: str) -> None:
    status, answer = ask(server, "GET", path, token=token)
    assert status == 401 and set(answer) == {"error", "fix", "kind"}


def test_a_wrong_token_costs_time_and_the_connection(run: RunFolder) -> None:
    with served(run, wrong_token_seconds=0.5) as server, connect(server) as client:
        started = time.monotonic()
        client.sendall(b"GET /v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer wrong-wrong-wrong\r\n\r\n")
        assert is_shut(client) and time.monotonic() - started >= 0.5


def test_who_it_is_needs_no_token(server: Server) -> None:
    status, answer = ask(server, "GET", "/v1/hello", token=None)
    assert status == 200 and answer["protocol"] == 1


def test_the_user_who_started_it_needs_none_on_the_same_machine(server: Server) -> None:
    assert ask(server, "GET", "/v1/runs")[1]["runs"][0]["name"] == "run"


@every_case("what", [{"do": "eval", "code": "1"}, {"do": "set", "text": "lr=0"}, {"do": "pause"}])
def test_a_token_that_says_it_only_reads_changes_nothing(server: Server, what: dict[str, str]) -> None:
    import json

    body = json.dumps({"request": what}).encode()
    status, answer = ask(server, "POST", "/v1/ask", body, token=READER.text)
    assert status == 403 and "reader may only read" in answer["error"]
    assert ask(server, "GET", "/v1/runs", token=READER.text)[0] == 200
    assert ask(server, "POST", "/v1/ask", body, token=WRITER.text) == (200, [])  # no rank of it is alive


def test_a_server_that_only_answers_changes_nothing_for_anybody(run: RunFolder) -> None:
    with serving(Settings(listen="127.0.0.1:0", read_only=True), lambda: [run]) as server:
        status, answer = ask(server, "POST", "/v1/ask", b'{"request": {"do": "pause"}}')
        assert status == 403 and "read-only" in answer["error"]


def test_the_root_is_a_page_for_anybody_that_says_how_to_ask_and_nothing_of_a_run(server: Server) -> None:
    client = http.client.HTTPConnection("127.0.0.1", server.port)
    client.request("GET", "/")
    answer = client.getresponse()
    page = answer.read().decode()
    assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/html")
    assert f"holdfast ps -t 127.0.0.1:{server.port}" in page and "loss 0" not in page


@every_case("path", ["/v1", "/v1/tables/..%2f..%2fetc", "/v2/runs", "/v1/tables/steps/../../runs", "/" + "a" * 9000])
def test_a_path_that_is_none_is_404(server: Server, path: str) -> None:
    status, answer = ask(server, "GET", path)
    assert status == 404 and len(answer["error"]) < 200


@every_case("method", ["PUT", "DELETE", "OPTIONS"])
def test_other_methods_are_refused(server: Server, method: str) -> None:
    assert ask(server, method, "/v1/runs")[0] == 405


@every_case("body", [b"[]", b"{", b"\xff", b'"text"', b'{"sql": 5}', b"{}"])
def test_a_body_that_makes_no_sense_is_told_so(server: Server, body: bytes) -> None:
    assert ask(server, "POST", "/v1/query", body)[0] == 400


def test_a_body_over_the_limit_is_refused_unread(server: Server) -> None:
    with connect(server) as client:
        client.sendall(b"POST /v1/query HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 999999999999\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 413") and is_shut(client)


@every_case("length", [b"-1", b"1e3", b"", b"0x10"])
def test_a_length_that_is_no_number_is_refused(server: Server, length: bytes) -> None:
    with connect(server) as client:
        client.sendall(b"POST /v1/query HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: " + length + b"\r\n\r\n")
        assert client.recv(100).startswith((b"HTTP/1.1 400", b"HTTP/1.1 413"))


def test_a_body_in_chunks_is_refused(server: Server) -> None:
    with connect(server) as client:
        client.sendall(b"POST /v1/query HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 411") and is_shut(client)


@every_case("head", [b"A: " + b"a" * 70_000, b"A: a\r\n" * 5000, b"A: a\r\n" * 99 + b"B: " + b"b" * 30_000])
def test_a_head_over_the_limit_is_refused(server: Server, head: bytes) -> None:
    with connect(server) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(b"GET /v1/hello HTTP/1.1\r\nHost: 127.0.0.1\r\n" + head + b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert client.recv(100)[:12] in (b"HTTP/1.1 431", b"")
        assert is_shut(client)


HALF = b"POST /v1/query HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 50\r\n\r\n"


@every_case("start", [b"", b"G", b"GET /v1/hello HTTP/1.1\r\n", HALF])
def test_a_client_that_sends_a_byte_at_a_time_is_shut_and_others_are_served(run: RunFolder, start: bytes) -> None:
    with served(run, request_seconds=0.6) as server, connect(server) as slow:
        slow.sendall(start)
        ended = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                while not ended.wait(0.05):
                    slow.sendall(b"a")

        dripping = threading.Thread(target=drip)
        dripping.start()
        assert ask(server, "GET", "/v1/hello")[0] == 200
        assert is_shut(slow)
        ended.set()
        dripping.join()


def test_a_client_that_does_not_read_its_answers_is_shut(tmp_path: Path) -> None:
    run = make_run(tmp_path, steps=5000)
    with served(run, answer_seconds=0.6) as server, connect(server) as client:
        who = b"Host: 127.0.0.1\r\nAuthorization: Bearer " + own_token(server).encode()
        request = b"GET /v1/tables/steps/rows HTTP/1.1\r\n" + who + b"\r\n\r\n"
        client.sendall(request * 150)  # the answers are more than the kernel holds for it
        wait_until(lambda: bool(server.connections._by_address))
        wait_until(lambda: not server.connections._by_address)
        assert is_shut(client)


def test_one_address_cannot_take_all_connections(run: RunFolder) -> None:
    with served(run, connections=4, connections_of_one=2) as server, connect(server) as one, connect(server) as two:
        one.sendall(b"G")
        two.sendall(b"G")
        time.sleep(0.2)
        with connect(server) as three:
            assert is_shut(three)


def test_too_many_requests_are_refused(run: RunFolder) -> None:
    with served(run, requests_a_second=0.1, requests_at_once=3) as server:
        assert [ask(server, "GET", "/v1/hello")[0] for _ in range(5)] == [200, 200, 200, 429, 429]


def test_the_bucket_of_an_address_fills_up_again_and_others_have_their_own() -> None:
    rate = Rate(2.0, 2)
    assert [rate.allows("a", 0.0) for _ in range(3)] == [True, True, False]
    assert rate.allows("b", 0.0) and not rate.allows("a", 0.4) and rate.allows("a", 1.1)


def test_connections_are_counted_out() -> None:
    connections = Connections(Limits(connections=2, connections_of_one=1))
    assert connections.enter("a") and not connections.enter("a") and connections.enter("b") and not connections.enter("c")
    connections.leave("a")
    assert connections.enter("c")


def read(content: bytes) -> pa.Table:
    return pa.ipc.open_stream(content).read_all()


def test_a_table_comes_as_arrow_with_whose_every_row_is(server: Server) -> None:
    table = read(ask(server, "GET", "/v1/tables/steps/rows")[1])
    assert table.num_rows == 200 and set(table.column("rank").to_pylist()) == {0, 1}
    assert set(table.column("host").to_pylist()) >= {table.column("host")[0].as_py()} and table.column("run")[0].as_py() == "run"
    losses = table.column("loss").to_pylist()
    assert math.isnan(losses[7]) and losses[8] == 8.0 and table.column("lr").null_count == 200


def test_only_the_columns_that_are_asked_for_come(server: Server) -> None:
    table = read(ask(server, "GET", "/v1/tables/steps/rows?column=loss&column=rank&column=unknown")[1])
    assert table.column_names == ["rank", "loss"]


def test_names_come_as_text(server: Server) -> None:
    table = read(ask(server, "GET", "/v1/tables/evaluations/rows")[1])
    assert table.column("name").to_pylist() == ["metric 0", "metric 1"]


def test_a_table_over_the_limit_is_refused_before_it_is_sent(run: RunFolder) -> None:
    with served(run, table_bytes=1000) as server:
        status, answer = ask(server, "GET", "/v1/tables/steps/rows")
        assert status == 413 and "200 rows" in answer["error"] and "alone" in answer["fix"]
        assert ask(server, "GET", "/v1/tables/evaluations/rows?column=value")[0] == 200


def test_sql_is_answered_there_and_only_reads(server: Server) -> None:
    import json

    def sql(text: str) -> tuple[int, Any]:
        return ask(server, "POST", "/v1/query", json.dumps({"sql": text}).encode())

    assert sql("SELECT run, rank, COUNT(*) FROM steps GROUP BY ALL ORDER BY 2")[1]["rows"] == [["run", 0, 100], ["run", 1, 100]]
    for wrong in ("DROP TABLE steps", "SELECT * FROM read_csv('/etc/passwd')", "SELECT 1; SELECT 2", "COPY steps TO 'x'"):
        assert sql(wrong)[0] == 400


def test_a_run_whose_folder_is_gone_is_told_in_words(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=1, steps=1)
    with served(run) as server:
        shutil.rmtree(run.path)
        status, answer = ask(server, "GET", "/v1/journal")
        assert status == 500 and "cannot be read" in answer["error"]


def test_a_server_with_too_many_clients_is_told_as_such(run: RunFolder) -> None:
    with served(run, connections_of_one=0) as server, pytest.raises(Unreachable, match="too many clients"):
        Remote(Address("127.0.0.1", server.port)).get("/v1/runs")


def test_an_error_inside_does_not_end_the_server(run: RunFolder) -> None:
    def broken() -> list[RunFolder]:
        raise RuntimeError("boom")

    with serving(Settings(listen="127.0.0.1:0"), broken) as server:
        status, answer = ask(server, "GET", "/v1/runs")
        assert status == 500 and "boom" in answer["error"]
        assert ask(server, "GET", "/v1/hello")[0] == 200
