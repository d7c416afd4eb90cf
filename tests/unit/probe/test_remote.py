"""The client: whatever is at the other end, it says so in words, and shows its token to nobody but a server of ours."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from every_case import every_case
from small_server import http_answer, impostor, make_run, served

from holdfast.errors import HoldfastError, NotAllowed, QueryError, QueryTimeout, Unreachable, UsageError
from holdfast.probe.address import Address, parse
from holdfast.probe.remote import Remote
from holdfast.probe.remote_tables import RemoteRuns
from holdfast.probe.serve.server import Server
from holdfast.signals.run_folder import RunFolder
from holdfast.web.start import Settings, serving, tls_of

HELLO = http_answer({"holdfast": "0.1.0", "protocol": 1})
TOKEN = "hf_0123456789abcdef-secret"


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", TOKEN)
    monkeypatch.delenv("HOLDFAST_CA", raising=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_run(tmp_path_factory.mktemp("runs"))


def at(port: int, *, tls: bool = False) -> Remote:
    return Remote(Address("127.0.0.1", port, tls))


@every_case(
    ("text", "address"),
    [
        ("node1:8080", Address("node1", 8080)),
        ("10.0.0.3:80", Address("10.0.0.3", 80)),
        ("[::1]:9000", Address("::1", 9000)),
        ("https://node-1.cluster:8080", Address("node-1.cluster", 8080, True)),
        ("http://node1:8080", Address("node1", 8080)),
        ("node1:8080/live", Address("node1", 8080, False, "live")),
    ],
)
def test_an_address_is_read_as_it_is_written(text: str, address: Address) -> None:
    assert parse(text) == address


@every_case("text", ["node1", "12345", "runs/a", "node1:", "node1:0", "node1:99999", ":80", "-x:80", "a b:80", "ftp://a:80"])
def test_what_is_no_address_is_none(text: str) -> None:
    assert parse(text) is None


def test_with_an_authority_named_every_address_means_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CA", "ca.pem")
    plain, secure = parse("http://a:80"), parse("a:80")
    assert plain is not None and not plain.tls and secure is not None and secure.tls


def test_nobody_there_is_told(run: RunFolder) -> None:
    with served(run) as server:
        port = server.port
    with pytest.raises(Unreachable, match="Connection refused"):
        at(port).get("/v1/runs")


def test_a_name_that_is_none_is_told() -> None:
    with pytest.raises(Unreachable, match="no such host"):
        Remote(Address("no-such-machine.invalid", 80)).get("/v1/runs")


@every_case(
    "answer", [b"SSH-2.0-OpenSSH\r\n", b"", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", http_answer([]), http_answer({})]
)
def test_the_token_is_not_shown_to_what_is_no_server_of_ours(answer: bytes) -> None:
    with impostor(answer) as (port, heard):
        with pytest.raises(Unreachable):
            at(port).get("/v1/runs")
        assert heard and all(TOKEN.encode() not in data for data in heard)


def test_a_server_of_another_version_is_told() -> None:
    with (
        impostor(http_answer({"holdfast": "9.0", "protocol": 2})) as (port, _),
        pytest.raises(Unreachable, match=r"Holdfast 9\.0"),
    ):
        at(port).get("/v1/runs")


def test_without_a_token_it_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_TOKEN")
    with impostor(HELLO) as (port, _), pytest.raises(NotAllowed) as caught:
        at(port).get("/v1/runs")
    assert "HOLDFAST_TOKEN" in caught.value.fix


def test_a_wrong_token_is_told(run: RunFolder) -> None:
    with served(run, wrong_token_seconds=0.01) as server:
        remote = at(server.port)
        remote._token = "hf_wrong-wrong-wrong"
        with pytest.raises(NotAllowed, match="does not know this token"):
            remote.get("/v1/runs")


@every_case(
    "part",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n{",
    ],
)
def test_a_server_that_dies_in_the_middle_of_its_answer_is_told(part: bytes) -> None:
    with impostor(HELLO, part) as (port, _), pytest.raises(Unreachable):
        at(port).get("/v1/runs")


def whole_table(server: Server) -> bytes:
    """What the server sends for a table, as it stands on the wire."""
    import socket

    from small_server import own_token

    with socket.create_connection(("127.0.0.1", server.port)) as client:
        who = f"Host: 127.0.0.1\r\nAuthorization: Bearer {own_token(server)}"
        head = f"GET /v1/tables/steps/rows HTTP/1.1\r\n{who}\r\nConnection: close\r\n\r\n"
        client.sendall(head.encode())
        data = b""
        while part := client.recv(65536):
            data += part
    return data


def test_a_table_that_is_cut_anywhere_never_passes_for_a_whole_one(run: RunFolder) -> None:
    with served(run) as server:
        sent = whole_table(server)
        source = RemoteRuns(at(server.port), ["run"], seconds=5)
        assert source.open("steps").distant[0].load(["loss"]).num_rows == 200
    body = sent.index(b"\r\n\r\n") + 4
    for cut in (*range(body, len(sent), len(sent) // 25), len(sent) - 5, len(sent) - 6, len(sent) - 7):
        with impostor(HELLO, sent[:cut]) as (port, _), pytest.raises(Unreachable):
            RemoteRuns(at(port), ["run"], seconds=5).stream("steps", ["loss"], "")
    with impostor(HELLO, sent) as (port, _):
        assert RemoteRuns(at(port), ["run"], seconds=5).stream("steps", ["loss"], "").num_rows == 200


def test_an_error_over_there_is_the_same_error_here(run: RunFolder) -> None:
    with served(run) as server:
        remote = at(server.port)
        with pytest.raises(QueryError, match="there is no column 'los'; near it: loss"):
            remote.post("/v1/query", {"sql": "SELECT los FROM steps"})
        slow = "WITH RECURSIVE t AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM t) SELECT COUNT(*) FROM t"
        with pytest.raises(QueryTimeout):
            remote.post("/v1/query", {"sql": slow, "timeout": 0.3})


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    names = "-subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1"
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*f"openssl req -x509 -days 2 {key} {names}".split(), *files], check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture
def secure(run: RunFolder, certificate: tuple[Path, Path]) -> Iterator[Server]:
    with serving(Settings(listen="0.0.0.0:0", cert=certificate[0], key=certificate[1]), lambda: [run]) as server:
        yield server


def test_tls_with_a_certificate_that_is_trusted(
    secure: Server, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CA", str(certificate[0]))
    source = RemoteRuns(at(secure.port, tls=True), ["run"], seconds=5)
    assert source.open("steps").distant[0].load(["loss"]).num_rows == 200


def test_a_certificate_that_nobody_vouches_for_is_refused(secure: Server) -> None:
    with pytest.raises(Unreachable, match="not trusted") as caught:
        at(secure.port, tls=True).get("/v1/runs")
    assert "HOLDFAST_CA" in caught.value.fix


def test_a_certificate_of_another_name_is_refused(
    secure: Server, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CA", str(certificate[0]))
    with pytest.raises(Unreachable, match="not trusted"):
        Remote(Address("127.0.0.2", secure.port, True)).get("/v1/runs")


def test_speaking_plainly_to_tls_and_tls_to_plain_is_told(secure: Server, run: RunFolder) -> None:
    with pytest.raises(Unreachable, match="speaks TLS") as caught:
        at(secure.port).get("/v1/runs")
    assert "https://" in caught.value.fix
    with served(run) as plain, pytest.raises(Unreachable, match="does not speak TLS"):
        at(plain.port, tls=True).get("/v1/runs")


def test_a_client_that_stops_in_the_handshake_is_shut(run: RunFolder, certificate: tuple[Path, Path]) -> None:
    from small_server import connect, is_shut

    from holdfast.probe.serve.limits import Limits

    limits = Limits(request_seconds=0.5)
    settings = Settings(listen="127.0.0.1:0", cert=certificate[0], key=certificate[1], limits=limits)
    with serving(settings, lambda: [run]) as server, connect(server) as client:
        client.sendall(b"\x16\x03\x01\x02\x00")
        assert is_shut(client)


@every_case("which", ["nothing", "text", "another key"])
def test_files_that_are_no_certificate_are_refused_in_words(certificate: tuple[Path, Path], tmp_path: Path, which: str) -> None:
    wrong = tmp_path / "wrong.pem"
    if which == "text":
        wrong.write_text("hello")
    elif which == "another key":
        subprocess.run(
            ["openssl", "ecparam", "-genkey", "-name", "prime256v1", "-out", str(wrong)], check=True, capture_output=True
        )
    with pytest.raises(UsageError, match="cannot be used"):
        tls_of(certificate[0], wrong)
    with pytest.raises(HoldfastError):
        tls_of(None, wrong)
