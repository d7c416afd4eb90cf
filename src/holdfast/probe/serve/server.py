"""The HTTP server: a bounded number of threads, TLS if there is a certificate, and nobody who can hold a thread for ever.

Every connection has a deadline: for its handshake, for each request to be complete, for each answer to be taken. One thread
looks at all of them and shuts those that are over time, so that a client that sends or reads a byte a minute is gone soon.
"""

from __future__ import annotations

import contextlib
import http.server
import math
import secrets
import socket
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.probe.serve.limits import Connections, Limits, Rate
from holdfast.probe.serve.tokens import Token
from holdfast.probe.table_files import TableFiles
from holdfast.signals.run_folder import RunFolder

_AT_MOST = 8
_SECONDS = 60.0


class Opened:
    """The tables that were opened last, each under a mark. The oldest goes when there are too many: it is then opened again."""

    def __init__(self) -> None:
        self._tables: OrderedDict[str, tuple[float, TableFiles]] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, table: TableFiles) -> str:
        """Keep a table for a while; its mark."""
        mark = secrets.token_hex(8)
        with self._lock:
            self._drop_old()
            self._tables[mark] = (time.monotonic(), table)
            if len(self._tables) > _AT_MOST:
                self._tables.popitem(last=False)
        return mark

    def find(self, mark: str, name: str) -> TableFiles | None:
        """The table of that name that was kept under a mark; None if it is gone."""
        with self._lock:
            self._drop_old()
            _, table = self._tables.get(mark, (0.0, None))
        return table if table is not None and table.name == name else None

    def _drop_old(self) -> None:
        while self._tables and next(iter(self._tables.values()))[0] < time.monotonic() - _SECONDS:
            self._tables.popitem(last=False)


_LOOK_SECONDS = 0.25


class Server(http.server.ThreadingHTTPServer):
    """Serves the runs that `runs` answers with. `say` hears of what a person should know."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[http.server.BaseHTTPRequestHandler],
        runs: Callable[[], list[RunFolder]],
        tokens: Sequence[Token],
        *,
        read_only: bool = False,
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.runs, self.tokens, self.read_only, self.say = runs, list(tokens), read_only, say
        self.limits = limits or Limits()
        self.rate = Rate(self.limits.requests_a_second, self.limits.requests_at_once)
        self.connections = Connections(self.limits)
        self.sql_turn = threading.BoundedSemaphore(self.limits.sql_at_once)
        self.stacks_turn = threading.Lock()
        self.opened = Opened()
        self.mark = secrets.token_hex(8)
        self._tls = tls
        self._deadlines: dict[socket.socket, float] = {}
        self._lock, self._strangers = threading.Lock(), Rate(1 / 60, 1)
        self._closed = threading.Event()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)
        threading.Thread(target=self._shut_late_ones, name="holdfast-serve-deadlines", daemon=True).start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.server_address[1])

    def server_bind(self) -> None:
        """Bind, without asking a name server for our name as the standard library does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.port

    def get_request(self) -> tuple[Any, Any]:
        """Take a connection; its handshake happens in its own thread."""
        try:
            connection, address = super().get_request()
        except OSError:
            time.sleep(_LOOK_SECONDS)  # no file is free: it stays in the queue, and asking on and on would not help
            raise
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give it a thread, or turn it away if there are too many."""
        if not self.connections.enter(client_address[0]):
            self.shutdown_request(request)
            return
        self.keep_until(request, self.limits.request_seconds)
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread to be had
            self._let_go(request, client_address)
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """In its thread: handle it, and count it out."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._let_go(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or spoke no TLS, is none of our business."""

    def say_of_stranger(self, address: str) -> None:
        """Say that somebody came without a known token; of one address once a minute."""
        if self._strangers.allows(address):
            self.say(f"a request from {address} without a known token was refused")

    def keep_until(self, connection: socket.socket, seconds: float) -> None:
        """Shut the connection if it is not given more time within these seconds."""
        with self._lock:
            self._deadlines[connection] = time.monotonic() + seconds

    def close(self) -> None:
        """Stop, and shut every connection."""
        self.shutdown()
        self._closed.set()
        self.server_close()
        self._shut_those(math.inf)

    def server_close(self) -> None:
        """Close the listening socket only: threads of clients end by themselves."""
        self.socket.close()

    def _let_go(self, connection: socket.socket, client_address: Any) -> None:
        with self._lock:
            self._deadlines.pop(connection, None)
        self.connections.leave(client_address[0])

    def _shut_late_ones(self) -> None:
        while not self._closed.wait(_LOOK_SECONDS):
            self._shut_those(time.monotonic())

    def _shut_those(self, now: float) -> None:
        with self._lock:
            late = [connection for connection, until in self._deadlines.items() if now > until]
        for connection in late:
            _shut(connection)


def _shut(connection: socket.socket) -> None:
    """End both directions, whatever another thread does with it; of a TLS connection the one below."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
