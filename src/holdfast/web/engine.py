"""uvicorn, bounded: so many connections, and nobody who can hold one for ever.

Every connection has a deadline: for its handshake, for each request to be complete, for each answer to be taken. A client that
sends or reads a byte a minute is gone soon.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import sys
import threading
from functools import partial
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from holdfast.probe.serve.server import Server

_BACKLOG = 64
_TURNED_AWAY_SECONDS = 1.0


class _Connection(H11Protocol):
    """One connection of a client, counted and timed."""

    def __init__(self, *args: Any, of: Server, **named: Any) -> None:
        super().__init__(*args, **named)
        self._of, self._counted = of, ""
        self._deadline: asyncio.TimerHandle | None = None
        self._answered: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it, or turn it away if there are too many."""
        super().connection_made(transport)
        address = self.client[0] if self.client else "unknown"
        if not self._of.connections.enter(address):
            self._keep_for(min(_TURNED_AWAY_SECONDS, self._of.limits.request_seconds))
            return
        self._counted = address
        self._keep_for(self._of.limits.request_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it out."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self._counted:
            self._of.connections.leave(self._counted)
            self._counted = ""
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """More of a request; a client that was turned away learns it when it asks: closed before, it would see a reset."""
        if self._counted:
            super().data_received(data)
        else:
            self.transport.close()

    def handle_events(self) -> None:
        """When a request is complete, its answer gets its time."""
        super().handle_events()
        cycle = self.cycle
        if cycle is not None and cycle is not self._answered and not cycle.more_body and not cycle.response_complete:
            self._answered = cycle
            self._keep_for(self._of.limits.answer_seconds)

    def on_response_complete(self) -> None:
        """The next request gets its time."""
        self._keep_for(self._of.limits.request_seconds)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """What the HTTP parser refuses by itself, in our form."""
        error = sys.exc_info()[1]
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        content = json.dumps({"error": f"{error or msg}.", "fix": "see docs/diagnose.md", "kind": "http"}).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(content))), ("connection", "close")]
        try:
            for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=content), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # an answer is under way already
            pass
        self.transport.close()

    def _keep_for(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)


class Engine(uvicorn.Server):
    """Answers with `app` on a socket, in a thread of its own."""

    def __init__(self, app: Any, server: Server, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        limits = server.limits
        super().__init__(
            uvicorn.Config(
                app, http=H11Protocol, ws="none", loop="asyncio", log_config=None, log_level="critical", access_log=False,
                server_header=False, proxy_headers=False, timeout_keep_alive=max(1, round(limits.request_seconds)),
                h11_max_incomplete_event_size=limits.header_bytes,
            )
        )  # fmt: skip
        self._of, self._socket, self._tls = server, listening, tls
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self.run, name="holdfast-serve", daemon=True)

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()
        self._is_ready.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        """Listen, with our own connections and a time limit for the TLS handshake."""
        try:
            await self.lifespan.startup()
            state = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
            seconds = self._of.limits.request_seconds if self._tls is not None else None
            self.servers = [
                await asyncio.get_running_loop().create_server(
                    partial(_Connection, of=self._of, **state),
                    sock=self._socket, ssl=self._tls, ssl_handshake_timeout=seconds, backlog=_BACKLOG,
                )
            ]  # fmt: skip
            self.started = True
        finally:
            self._is_ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut every connection, whatever it waits for."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await super().shutdown(sockets)

    def close(self) -> None:
        """Stop, and shut every connection."""
        self.should_exit = self.force_exit = True
        self._thread.join(5.0)
