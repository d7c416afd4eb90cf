"""Servers that the script talks to, such as a tracker's: one that has answered and does so no more is a finding.

Looked at where every client in Python passes by: `socket.connect`, the look-up of a name, and the answer of `http.client`. Only
a server that has answered before counts, and only from its second failure in a row on: looking whether something is there at
all is what many packages do when they start. What the script gets and what is raised stays as it is.
"""

from __future__ import annotations

import http.client
import os
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.inside.patches import Patches
from holdfast.inside.shield import Shield

if TYPE_CHECKING:
    from holdfast.inside.capture.checkpoint_news import CheckpointNews

CODE = "tracker-unreachable"
_IN_A_ROW = 2
_SERVERS_AT_MOST = 256
_NETWORK = (socket.AF_INET, socket.AF_INET6)


class Servers:
    """Which servers have answered this process, and how often in a row they have not since."""

    def __init__(self, news: CheckpointNews) -> None:
        self._news = news
        self._pid = os.getpid()
        self._failures: dict[str, int] = {}  # of servers that have answered before
        self._told: set[str] = set()

    def install(self, patches: Patches, shield: Shield) -> None:
        """Hang it into the standard library."""
        answered, failed = shield(self.answered), shield(self.failed)

        def watched(name_of: Callable[..., str]) -> Callable[[Any], Any]:
            return lambda original: _watched(original, name_of, answered, failed)

        patches.replace(socket.socket, "connect", watched(_of_socket))
        patches.replace(socket, "getaddrinfo", watched(_of_name))
        patches.replace(http.client.HTTPConnection, "getresponse", watched(_of_connection))

    def answered(self, server: str) -> None:
        """It is there."""
        if self._failures.get(server) != 0 and len(self._failures) < _SERVERS_AT_MOST:
            self._failures[server] = 0

    def failed(self, server: str, error: OSError, seconds: float) -> None:
        """It is not there any more; told once for each server, after the first steps."""
        if server not in self._failures or os.getpid() != self._pid:
            return
        self._failures[server] = count = self._failures[server] + 1
        if count < _IN_A_ROW or server in self._told or not self._news.step():
            return
        self._told.add(server)
        what = {"server": server.partition(" ")[2], "error": f"{type(error).__name__}: {error}", "seconds": round(seconds, 3)}
        self._news.finding(CODE, "warning", {**what, "failures": count})


def _watched(
    original: Callable[..., Any], name_of: Callable[..., str], answered: Callable[..., Any], failed: Callable[..., Any]
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        try:
            result = original(*args, **kwargs)
        except BlockingIOError:  # it is told later whether it worked
            raise
        except (OSError, http.client.HTTPException) as error:
            if server := name_of(*args, **kwargs):
                failed(server, error, time.perf_counter() - begun)
            raise
        if server := name_of(*args, **kwargs):
            answered(server)
        return result

    return call


def _of_socket(one: Any, address: Any = None, *_: Any) -> str:
    known = isinstance(address, tuple) and len(address) >= 2 and getattr(one, "family", None) in _NETWORK
    return f"socket {address[0]}:{address[1]}" if known else ""


def _of_name(host: Any = None, *_: Any, **__: Any) -> str:
    return f"name {host}" if isinstance(host, str) and host else ""


def _of_connection(connection: Any, *_: Any, **__: Any) -> str:
    return f"http {connection.host}:{connection.port}"
