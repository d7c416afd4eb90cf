"""The API that `-t HOST:PORT` asks (`probe.serve.routes`), over Starlette."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

import anyio
import anyio.from_thread
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.errors import UsageError
from holdfast.probe.serve.reply import Denied, Json, Stream
from holdfast.probe.serve.reply import Request as Asked
from holdfast.probe.serve.routes import find_route
from holdfast.web.site import Site

_CHUNK_BYTES = 256 << 10
Endpoint = Callable[[Request], Awaitable[Response]]


def endpoint(site: Site) -> Endpoint:
    """Answers every path of it."""
    server, threads = site.server, anyio.CapacityLimiter(site.server.limits.connections)

    async def answer(request: Request) -> Response:
        route = find_route(request.method, request.url.path)
        options = parse_qs(request.scope["query_string"].decode("latin-1"))
        asked = Asked(server, await body_of(request), options, route.path_parts)
        if not route.open_to_all:
            asked.who, asked.address = request.state.who, request.state.address
            if route.changes:
                check_may_change(site, request)
        reply = await anyio.to_thread.run_sync(route.answer, asked, limiter=threads)
        return _Written(reply, threads) if isinstance(reply, Stream) else as_json(reply)

    return answer


def check_may_change(site: Site, request: Request) -> None:
    """Refuse a change where the server, or the token, may only read."""
    who = request.state.who
    if site.server.read_only or who.read_only:
        reason = "this server is read-only" if site.server.read_only else f"the token of {who.name} may only read"
        raise Denied(403, f"{reason}: eval and changes are refused.", fix="use a token that may")


async def body_of(request: Request) -> dict[str, Any]:
    """The body, a JSON object; empty without one."""
    text = await request.body()
    try:
        content = json.loads(text) if text else {}
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise UsageError("the body is not a JSON object.", fix="see docs/diagnose.md")
    return content


def as_json(reply: Json) -> Response:
    """A value as an answer."""
    text = json.dumps(reply.content, ensure_ascii=False, default=str)
    return Response(text.encode(errors="replace"), reply.status, media_type="application/json")


class _Written(Response):
    """An answer that a thread writes piece by piece; one that breaks off has no end, and is known for what it is."""

    def __init__(self, stream: Stream, threads: anyio.CapacityLimiter) -> None:
        super().__init__(media_type=stream.kind)
        del self.headers["content-length"]
        self._stream, self._threads = stream, threads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        out = _Chunks(send)
        await anyio.to_thread.run_sync(self._stream.write_to, out, limiter=self._threads)
        await send({"type": "http.response.body", "body": out.rest()})


class _Chunks:
    """A file in a thread, whose content is sent in chunks of a good size."""

    def __init__(self, send: Send) -> None:
        self._send, self._held, self.closed = send, bytearray(), False

    def write(self, data: Any) -> int:
        """Send it, or keep it until there is more."""
        self._held += data
        if len(self._held) >= _CHUNK_BYTES:
            anyio.from_thread.run(self._hand_over, self.rest())
        return len(data)

    async def _hand_over(self, content: bytes) -> None:
        await self._send({"type": "http.response.body", "body": content, "more_body": True})

    def flush(self) -> None:
        """What is kept goes with the rest."""

    def rest(self) -> bytes:
        """What was kept."""
        content, self._held = bytes(self._held), bytearray()
        return content
