"""Every request passes here first: how many there may be, from which page, with which token; and every answer gets its headers.

A browser shows whose it is by a signed cookie, a program by its token. A name that somebody else's name server made to point here
(DNS rebinding), and a page of another origin, are refused whatever they bring.
"""

from __future__ import annotations

import ipaddress
import json
import socket
from typing import Any
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.errors import HoldfastError
from holdfast.probe.address import is_loopback
from holdfast.probe.serve.reply import Denied
from holdfast.probe.serve.tokens import Token, find
from holdfast.web.site import Site

_OPEN = ("/", "/v1/hello", "/api/login")
_METHODS = ("GET", "HEAD", "POST", "DELETE")
_TO_TELL_AGAIN = "the token is in HOLDFAST_TOKEN or in the file that HOLDFAST_TOKEN_FILE names"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Gate:
    """Lets through what may come in; turns every error into an answer with its fix."""

    def __init__(self, app: ASGIApp, site: Site) -> None:
        server = site.server
        self._app, self._site, self._server = app, site, server
        self._local = is_loopback(server.server_address[0])
        own = () if self._local else (socket.gethostname().lower(), server.server_address[0].lower())
        self._hosts = {"localhost", *own, *(name.lower() for name in site.hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_begun = False

        async def answer(message: Message) -> None:
            nonlocal is_begun
            if message["type"] == "http.response.start":
                is_begun = True
                headers = MutableHeaders(scope=message)
                for name, text in _HEADERS.items():
                    headers.setdefault(name, text)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            await self._check(scope)
            await self._app(scope, receive, answer)
        except Exception as error:
            if is_begun:
                self._server.say(f"an answer broke off: {type(error).__name__}: {error}")
                raise
            await _refuse(error, answer)

    async def _check(self, scope: Scope) -> None:
        address, limits, headers = _address(scope), self._server.limits, Headers(scope=scope)
        if not self._server.rate.allows(address):
            raise Denied(429, "too many requests.", fix=f"ask at most {limits.requests_a_second:g} times a second")
        if scope["method"] not in _METHODS:
            raise Denied(405, f"{scope['method'][:20]} is not answered here.", fix="ask with GET or POST; see docs/diagnose.md")
        if sum(len(name) + len(text) + 4 for name, text in scope["headers"]) + len(scope["query_string"]) > limits.header_bytes:
            raise Denied(431, "the head of the request is too long.", fix=f"send at most {limits.header_bytes:,} bytes")
        _check_body(headers, limits.body_bytes)
        self._check_origin(scope, headers)
        scope.setdefault("state", {})["address"] = address
        if scope["path"] in _OPEN or scope["path"].startswith("/static/"):
            return
        scope["state"]["who"] = await self._who(scope, headers, address)

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        host = headers.get("host", "")
        name = _split(f"//{host}").hostname or "" if host.isascii() and len(host) < 300 else ""
        is_program = scope["path"] == "/v1/hello" or "authorization" in headers  # no browser adds a token by itself
        if not self._knows(name) and (self._local or not is_program):
            raise Denied(
                403, f"this server is not called {host[:80]!r}.", fix="ask by its address, or start it with --allow-host NAME"
            )
        origin = headers.get("origin")
        if origin is not None and _split(origin).netloc.lower() != host.lower():
            raise Denied(403, "a page of another origin may not ask this server.", fix="open the page of this server itself")

    def _knows(self, name: str) -> bool:
        name = name.lower()
        try:
            literal = ipaddress.ip_address(name)
        except ValueError:
            return name in self._hosts
        return literal.is_loopback or not self._local

    async def _who(self, scope: Scope, headers: Headers, address: str) -> Token:
        """Whose request it is. A wrong token costs time, and after a few of them a pause."""
        kind, _, text = headers.get("authorization", "").partition(" ")
        text = text.strip() if kind.lower() == "bearer" else ""
        token = find(text, self._server.tokens) if text else self._site.sessions.token(HTTPConnection(scope).cookies)
        if token and not text and scope["method"] not in ("GET", "HEAD") and headers.get("origin") is None:
            raise Denied(403, "a browser says where a request comes from, and this one does not.", fix="send a token instead")
        if token is not None:
            return token
        await self._site.slow_down(address, tried=bool(text))
        problem = "the server does not know this token." if text else "this server needs a token."
        raise Denied(401, problem, fix=_TO_TELL_AGAIN)


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError:  # half of an IPv6 address
        return urlsplit("")


def _address(scope: Scope) -> str:
    return str(scope["client"][0]) if scope.get("client") else "unknown"


def _check_body(headers: Headers, at_most: int) -> None:
    if "transfer-encoding" in headers:
        raise Denied(411, "a body without a length.", fix="send it with Content-Length")
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > at_most:
        raise Denied(413, f"a body of {length[:20]} bytes.", fix=f"send at most {at_most:,} bytes")


async def _refuse(error: Exception, send: Send) -> None:
    """An error as an answer; the connection of a client that was refused is closed."""
    if isinstance(error, Denied):
        status = error.status
    elif isinstance(error, HoldfastError):
        status = 400
    elif isinstance(error, OSError):
        status, error = 500, HoldfastError(f"the run cannot be read there: {error}.", fix="check whether its folder still exists")
    else:
        status, error = 500, HoldfastError(f"the server failed: {type(error).__name__}: {error}", fix="please report it")
    content = json.dumps({"error": error.problem, "fix": error.fix, "kind": type(error).__name__}, ensure_ascii=False).encode()
    headers: list[tuple[bytes, bytes]] = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    if status in (401, 411, 413, 429, 431):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def who_asks(scope: Scope) -> str:
    """Who a request comes from, as the journal shows it."""
    state: dict[str, Any] = scope["state"]
    return f"{state['who'].name} from {state['address']}"
