"""One connection of a client: read a request within its limits, see who asks, answer."""

from __future__ import annotations

import http.client
import http.server
import json
import ssl
import time
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

from holdfast.errors import HoldfastError, UsageError
from holdfast.probe.serve.reply import Denied, Json, Page, Reply, Request, Stream
from holdfast.probe.serve.routes import find_route
from holdfast.probe.serve.server import Server
from holdfast.probe.serve.tokens import find

_CHUNK_BYTES = 256 << 10
_TO_TELL_AGAIN = "the token is in HOLDFAST_TOKEN or in the file that HOLDFAST_TOKEN_FILE names"


class Handler(http.server.BaseHTTPRequestHandler):
    """Speaks HTTP/1.1 with one client."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "holdfast", ""
    error_content_type = "application/json"
    disable_nagle_algorithm = True
    server: Server

    def setup(self) -> None:
        """Shake hands where TLS is spoken, and bound what is read as headers."""
        if isinstance(self.request, ssl.SSLSocket):
            self.request.do_handshake()
        super().setup()
        self.rfile = cast(Any, _Limited(self.rfile, self.server.limits.header_bytes))

    def handle_one_request(self) -> None:
        """The next request must come, and come whole, within its time."""
        self.server.keep_until(self.request, self.server.limits.request_seconds)
        self._reader.start()
        super().handle_one_request()

    def do_GET(self) -> None:
        """Something is asked."""
        self._serve()

    def do_POST(self) -> None:
        """Something with a body is asked, or something is to be done."""
        self._serve()

    @property
    def _reader(self) -> _Limited:
        return cast(_Limited, self.rfile)

    def _serve(self) -> None:
        try:
            reply = self._answer()
        except Denied as error:
            reply = self._no(error.status, error)
        except HoldfastError as error:
            reply = self._no(http.client.BAD_REQUEST, error)
        except (OSError, http.client.HTTPException):
            raise
        except Exception as error:  # noqa: BLE001 - the server continues; the client gets the error
            own = HoldfastError(f"the server failed: {type(error).__name__}: {error}", fix="please report it")
            reply = self._no(http.client.INTERNAL_SERVER_ERROR, own)
        self.server.keep_until(self.request, self.server.limits.answer_seconds)
        self._send(reply)

    def _answer(self) -> Reply:
        address, limits = str(self.client_address[0]), self.server.limits
        if not self.server.rate.allows(address):
            self.close_connection = True
            raise Denied(429, "too many requests.", fix=f"ask at most {limits.requests_a_second:g} times a second")
        body = self._body()
        parts = urlsplit(self.path)
        route = find_route(self.command, unquote(parts.path))
        request = Request(self.server, body, parse_qs(parts.query), route.words)
        if not route.open_to_all:
            request.who = self._who(address)
            if route.changes and (self.server.read_only or request.who.read_only):
                reason = "this server is read-only" if self.server.read_only else f"the token of {request.who.name} may only read"
                raise Denied(403, f"{reason}: eval and changes are refused.", fix="use a token that may")
            request.address = address
        self.server.keep_until(self.request, limits.answer_seconds)
        try:
            return route.answer(request)
        except OSError as error:
            raise Denied(500, f"the run cannot be read there: {error}.", fix="check whether its folder still exists") from error

    def _who(self, address: str) -> Any:
        kind, _, text = self.headers.get("Authorization", "").partition(" ")
        token = find(text.strip(), self.server.tokens) if kind.lower() == "bearer" else None
        if token is None:
            self.server.say_of_stranger(address)
            time.sleep(self.server.limits.wrong_token_seconds)
            self.close_connection = True
            problem = "the server does not know this token." if text else "this server needs a token."
            raise Denied(401, problem, fix=_TO_TELL_AGAIN)
        return token

    def _body(self) -> dict[str, Any]:
        if "Transfer-Encoding" in self.headers:
            self.close_connection = True
            raise Denied(411, "a body without a length.", fix="send it with Content-Length")
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > self.server.limits.body_bytes:
            self.close_connection = True
            raise Denied(413, f"a body of {length} bytes.", fix=f"send at most {self.server.limits.body_bytes:,} bytes")
        text = self._reader.read(int(length)) if int(length) else b""
        if len(text) < int(length):
            raise ConnectionError("the client went away")
        try:
            content = json.loads(text) if text else {}
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise UsageError("the body is not a JSON object.", fix="see docs/live.md")
        return content

    def _no(self, status: int, error: HoldfastError) -> Json:
        return Json({"error": error.problem, "fix": error.fix, "kind": type(error).__name__}, int(status))

    def _send(self, reply: Reply) -> None:
        if isinstance(reply, Stream):
            self._send_stream(reply)
            return
        if isinstance(reply, Page):
            text, status, kind = reply.html, 200, "text/html; charset=utf-8"
        else:
            text, status, kind = json.dumps(reply.content, ensure_ascii=False, default=str), reply.status, "application/json"
        content = text.encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def _send_stream(self, stream: Stream) -> None:
        """In chunks. The last, empty one says that it was all: an answer that breaks off is known for what it is."""
        self.send_response(200)
        self.send_header("Content-Type", stream.kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        out = _Chunks(self.wfile)
        try:
            stream.write_to(out)
        except Exception as error:
            self.server.say(f"an answer broke off: {type(error).__name__}: {error}")
            raise ConnectionError("broken off") from error
        out.finish()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library refuses by itself, in our form."""
        self.close_connection = True
        self._send(Json({"error": f"{message or explain or 'refused'}.", "fix": "see docs/live.md", "kind": "http"}, int(code)))

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


class _Limited:
    """What comes from the client; lines before the body only up to so many bytes."""

    def __init__(self, file: Any, at_most: int) -> None:
        self._file, self._at_most, self._left = file, at_most, at_most

    def start(self) -> None:
        """A new request begins."""
        self._left = self._at_most

    def readline(self, size: int = -1) -> bytes:
        """A line of the head."""
        line: bytes = self._file.readline(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(line)
        if self._left < 0:
            raise http.client.LineTooLong("request")
        return line

    def read(self, size: int) -> bytes:
        """The body."""
        return cast(bytes, self._file.read(size))

    def close(self) -> None:
        """Close it."""
        self._file.close()

    @property
    def closed(self) -> bool:
        """Whether it is."""
        return bool(self._file.closed)


class _Chunks:
    """A file that sends what is written to it as HTTP chunks of a good size."""

    def __init__(self, out: Any) -> None:
        self._out, self._held, self._size = out, [], 0  # type: ignore[var-annotated]
        self.closed = False

    def write(self, data: Any) -> int:
        """Send it, or keep it until there is more."""
        piece = bytes(data)
        self._held.append(piece)
        self._size += len(piece)
        if self._size >= _CHUNK_BYTES:
            self.flush()
        return len(piece)

    def flush(self) -> None:
        """Send what was kept."""
        if self._size:
            self._out.write(b"%x\r\n%b\r\n" % (self._size, b"".join(self._held)))
            self._held, self._size = [], 0

    def finish(self) -> None:
        """Say that it was all."""
        self.flush()
        self._out.write(b"0\r\n\r\n")
