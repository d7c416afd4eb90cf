"""Nobody sees or changes anything who may not: tokens, cookies, names, origins, limits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from every_case import every_case
from small_server import own_token

from holdfast.probe.serve.server import Server
from holdfast.signals.run_folder import RunFolder

from .conftest import READER, WRITER, cookie_of, origin, page_of, request

PATHS = (
    *("/api/me", "/api/runs", "/api/run?run=first", "/api/curves?run=first", "/api/live", "/api/tab?run=first&tab=journal"),
    *("/api/checkpoints?run=first", "/api/compare?run=first&run=first", "/api/news?run=first", "/metrics", "/mcp", "/v1/runs"),
)


def test_nothing_of_a_run_is_told_without_a_token(run: RunFolder) -> None:
    with page_of(run, limits={"wrong_tokens_a_minute": 100}) as server:
        for path in PATHS:
            for token in (None, "hf_0123456789abcdeX"):
                answer = request(server, path, token=token)
                assert answer.status == 401 and "first" not in str(answer.content), path


def test_the_page_itself_tells_nothing_of_a_run_and_loads_nothing_from_elsewhere(ask: Any) -> None:
    page = ask("/", token=None).content.decode()
    assert "first" not in page and not re.search(r"(src|href)=\"(?!/static/|#)", page)
    for name in re.findall(r'"(/static/[^"]+)"', page):
        answer = ask(name, token=None)
        assert answer.status == 200 and "immutable" in answer.headers["Cache-Control"]


def test_the_whole_page_is_a_small_download(ask: Any) -> None:
    import gzip

    names = [path.name for path in (Path(__file__).parents[3] / "src/holdfast/web/static").iterdir() if path.name != "index.html"]
    files = [ask(f"/static/{name}", token=None, Accept_Encoding="gzip") for name in names]
    assert all(
        file.status == 200 and file.headers["Content-Encoding"] == "gzip" and gzip.decompress(file.content) for file in files
    )
    assert sum(len(file.content) for file in files) < 100_000


def test_every_answer_forbids_inline_scripts_frames_and_guessing(ask: Any) -> None:
    for path, token in (("/", None), ("/static/app.js", None), ("/api/runs", "own"), ("/api/runs", None), ("/nowhere", "own")):
        headers = ask(path, token=token).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
        assert policy["script-src"] == policy["style-src"] == "'self'" and policy["default-src"] == "'none'"
        assert policy["frame-ancestors"] == "'none'" and headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"


def test_the_page_has_no_inline_script_or_style(ask: Any) -> None:
    page = ask("/", token=None).content.decode()
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", page)


@every_case("path", ["/static/../app.py", "/static/..%2fapp.py", "/static/index.html", "/static/", "/static/%2e%2e/start.py"])
def test_only_the_files_of_the_page_are_given_out(ask: Any, path: str) -> None:
    assert ask(path, token=None).status in (401, 404)


@every_case("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:80", "", "[::2]", "[::1", "10.0.0.1", "a" * 400])
def test_a_name_that_was_made_to_point_here_is_refused_even_with_the_token(server: Server, host: str) -> None:
    for path in ("/", "/api/runs", "/v1/hello"):
        answer = request(server, path, Host=host)
        assert answer.status == 403 and "--allow-host" in answer.content["fix"]


@every_case("host", ["localhost", "LOCALHOST:1234", "127.0.0.1", "127.0.0.1:8090", "[::1]:8090"])
def test_the_names_of_this_machine_are_its_own_through_a_tunnel_too(server: Server, host: str) -> None:
    assert request(server, "/api/runs", Host=host).status == 200


def test_a_name_that_was_allowed_is_answered(run: RunFolder) -> None:
    with page_of(run, hosts=("train.example",)) as server:
        assert request(server, "/api/runs", Host="train.example").status == 200
        assert request(server, "/api/runs", Host="other.example").status == 403


def test_beyond_this_machine_a_program_may_use_any_name_and_a_browser_only_known_ones(run: RunFolder, tmp_path: Path) -> None:
    from holdfast.probe.serve import tokens
    from holdfast.web.start import Settings, serving

    token = tokens.add_to_file(tmp_path / "tokens").text
    with serving(Settings(listen="0.0.0.0:0", token_file=tmp_path / "tokens"), lambda: [run]) as server:
        assert request(server, "/metrics", token=token, Host="node1.cluster:8080").status == 200
        assert request(server, "/v1/hello", token=None, Host="node1.cluster:8080").status == 200
        assert request(server, "/", token=None, Host="node1.cluster:8080").status == 403
        assert request(server, "/", token=None, Host="10.1.2.3:8080").status == 200


@every_case("theirs", ["http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1:1", "http://[", ""])
def test_a_page_of_another_origin_is_refused_whatever_it_brings(server: Server, theirs: str) -> None:
    cookie = cookie_of(server)
    assert request(server, "/api/runs", token=None, Cookie=cookie, Origin=theirs).status == 403
    assert request(server, "/api/login", {"token": own_token(server)}, token=None, Origin=theirs).status == 403


def test_a_browser_signs_in_once_and_its_cookie_is_out_of_reach_of_scripts(server: Server) -> None:
    answer = request(server, "/api/login", {"token": own_token(server)}, token=None, Origin=origin(server))
    flags = answer.headers["Set-Cookie"].lower()
    assert "httponly" in flags and "samesite=strict" in flags and own_token(server).lower() not in flags
    cookie = answer.headers["Set-Cookie"].split(";")[0]
    assert request(server, "/api/me", token=None, Cookie=cookie).content["name"] == "local"


def test_over_tls_the_cookie_is_never_sent_in_the_clear(run: RunFolder, tmp_path: Path) -> None:
    import ssl
    import subprocess
    import urllib.request

    subject = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-nodes", "-days", "2")
    files = ("-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem"))
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", *files, *subject],
                   check=True, capture_output=True)  # fmt: skip
    with page_of(run, cert=tmp_path / "cert.pem", key=tmp_path / "key.pem") as server:
        body = b'{"token": "%b"}' % own_token(server).encode()
        trust = ssl.create_default_context(cafile=tmp_path / "cert.pem")
        with urllib.request.urlopen(f"https://127.0.0.1:{server.port}/api/login", body, context=trust) as answer:
            assert "; secure" in answer.headers["Set-Cookie"].lower()


@every_case("change", ["cut", "swap", "late", "other"])
def test_a_cookie_that_was_made_up_or_changed_is_none(server: Server, change: str) -> None:
    name, _, value = cookie_of(server).partition("=")
    whose, until, signature = value.split(".")
    made = {"cut": f"{whose}.{until}.{signature[:-1]}", "swap": f"{whose}.{until}.{signature[::-1]}",
            "late": f"{whose}.{int(until) + 1}.{signature}", "other": f"own2.{until}.{signature}"}[change]  # fmt: skip
    assert request(server, "/api/me", token=None, Cookie=f"{name}={made}").status == 401


def test_a_session_outlives_a_restart_but_not_its_token(run: RunFolder) -> None:
    with page_of(run) as server:
        port, cookie = server.port, cookie_of(server)
        server.tokens.append(WRITER)
        theirs = request(server, "/api/login", {"token": WRITER.text}, token=None).headers["Set-Cookie"].split(";")[0]
        assert request(server, "/api/me", token=None, Cookie=theirs).content["name"] == "writer"
        server.tokens.remove(WRITER)
        assert request(server, "/api/me", token=None, Cookie=theirs).status == 401
    from holdfast.web.start import Settings, serving

    with serving(Settings(listen=f"127.0.0.1:{port}"), lambda: [run]) as server:
        assert request(server, "/api/me", token=None, Cookie=cookie).status == 200


def test_a_cookie_of_another_server_is_none(run: RunFolder) -> None:
    with page_of(run) as one, page_of(run) as other:
        name, _, value = cookie_of(one).partition("=")
        assert (
            request(other, "/api/me", token=None, Cookie=f"{name.replace(str(one.port), str(other.port))}={value}").status == 401
        )


def test_a_file_token_that_is_called_local_is_not_the_users_own(run: RunFolder) -> None:
    from holdfast.probe.serve import tokens

    with page_of(run) as server:
        named = tokens.make("ro_abcdefabcdefabcdef", "local")
        server.tokens.insert(0, named)
        cookie = request(server, "/api/login", {"token": named.text}, token=None).headers["Set-Cookie"].split(";")[0]
        server.tokens.remove(named)
        assert request(server, "/api/me", token=None, Cookie=cookie).status == 401


def test_a_cookie_changes_nothing_without_an_origin(run: RunFolder) -> None:
    with page_of(run, allow_actions=True) as server:
        cookie, body = cookie_of(server), {"do": "pause"}
        assert request(server, "/api/act?run=first", body, token=None, Cookie=cookie).status == 403
        ours = request(server, "/api/act?run=first", body, token=None, Cookie=cookie, Origin=origin(server))
        assert ours.status == 400 and "training is over" in ours.content["error"]


@every_case("path", ["/api/act?run=first", "/api/login", "/api/logout", "/api/stacks?run=first", "/v1/ask", "/v1/number"])
def test_a_get_changes_nothing(server: Server, path: str) -> None:
    assert request(server, path).status in (404, 405)


def test_wrong_tokens_are_slowed_down_and_the_right_one_still_works(run: RunFolder) -> None:
    with page_of(run, limits={"wrong_tokens_a_minute": 3}) as server:
        tries = [request(server, "/api/me", token=f"hf_wrong_wrong_{number}").status for number in range(5)]
        assert tries == [401, 401, 401, 429, 429]
        assert request(server, "/api/login", {"token": "hf_wrong_wrong_wrong"}, token=None).status == 429
        assert request(server, "/api/me").status == 200


@every_case("token", [READER.text, WRITER.text, "own"])
def test_without_allow_actions_nobody_changes_anything(server: Server, token: str) -> None:
    answer = request(server, "/api/act?run=first", {"do": "pause"}, token=token)
    assert answer.status == 403 and "--allow-actions" in answer.content["fix"]


def test_a_token_that_may_only_read_does_not_act_where_others_may(run: RunFolder) -> None:
    with page_of(run, allow_actions=True) as server:
        server.tokens.append(READER)
        answer = request(server, "/api/act?run=first", {"do": "pause"}, token=READER.text)
        assert answer.status == 403 and "may only read" in answer.content["error"]
        assert request(server, "/api/me", token=READER.text).content["may_act"] is False


@pytest.mark.slow
def test_ten_thousand_hostile_requests_are_survived(run: RunFolder) -> None:
    """Nonsense of every kind from eight clients at once; afterwards it answers as before, and has grown no connections."""
    import random
    import socket
    from concurrent.futures import ThreadPoolExecutor

    with page_of(run, limits={"request_seconds": 2.0}) as server:
        pieces = (
            *(
                b"GET ",
                b"POST ",
                b"/api/",
                b"/../",
                b"%00",
                b"\r\n",
                b"\r\n\r\n",
                b" HTTP/1.1",
                b"Host: 127.0.0.1",
                b"Host: evil",
            ),
            *(b"Content-Length: 99999999999", b"Transfer-Encoding: chunked", b"Authorization: Bearer ", b"\xff\xfe", b"/mcp"),
            *(b"Host: evil", b"\x00"),
            *(b"Cookie: " + b"a=b;" * 300, b"{" * 500, b"Origin: null", b"/v1/query", b"?run=" + b"../" * 200),
        )

        def attack(seed: int) -> int:
            chance, done = random.Random(seed), 0
            for _ in range(1250):
                text = b"".join(chance.choices(pieces, k=chance.randint(1, 14)))
                try:
                    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as client:
                        client.settimeout(0.02)
                        client.sendall(text)
                        if b"\r\n\r\n" in text:
                            client.recv(1000)
                except OSError:
                    pass
                done += 1
            return done

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(attack, range(8))) == 10_000
        from holdfast_run import wait_until

        wait_until(lambda: server.rate.allows("127.0.0.1") and not server.connections._by_address)
        assert request(server, "/api/me").status in (200, 429)
        wait_until(lambda: request(server, "/api/runs").status == 200)


@pytest.mark.skipif(__import__("os").getuid() != 0, reason="needs root to become somebody else")
def test_another_user_of_this_machine_reads_neither_token_nor_session_key(server: Server) -> None:
    import os
    import subprocess

    runtime = Path(os.environ["XDG_RUNTIME_DIR"]) / "holdfast"
    files = [path for path in runtime.iterdir() if path.suffix in (".token", ".key")]
    assert {path.suffix for path in files} == {".token", ".key"}
    for path in files:
        theirs = subprocess.run(["cat", str(path)], user=12345, group=12345, extra_groups=[], capture_output=True, check=False)
        assert theirs.returncode != 0 and theirs.stdout == b""
