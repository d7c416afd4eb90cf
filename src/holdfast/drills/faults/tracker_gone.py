"""The tracker's server does not answer any more: it was restarted, or the network of this node is away."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
import weakref
from typing import Any

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext
from holdfast.drills.plan import VARIABLE

_NETWORK = (socket.AF_INET, socket.AF_INET6)


class TrackerGone(Fault):
    """Connections of this process to servers break, and no new one comes about; `strength` is how many seconds an attempt takes.

    The gate is in place from the start, closed only at the step: it lies under what watches connections. Ranks talk to each
    other past Python, and are not touched.
    """

    code = "tracker-gone"
    description = "servers that the script uses, such as a tracker's, stop answering"
    expected = Expected(findings=("tracker-unreachable",), causes=("server-does-not-answer",), survivable=True)
    needs = ("tracker",)
    strength = 0.2

    def __init__(self, strength: float | None = None) -> None:
        super().__init__(strength)
        self._gone = False
        self._open: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        if os.environ.get(VARIABLE):
            socket.socket.connect = self._gate(socket.socket.connect)  # type: ignore[method-assign]

    def update(self, context: FaultContext) -> None:
        """Between two steps."""
        self._gone = True
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _gate(self, original: Any) -> Any:
        def connect(connection: socket.socket, address: Any) -> Any:
            if connection.family not in _NETWORK:
                return original(connection, address)
            if self._gone:
                time.sleep(self.strong)
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            self._open.add(connection)
            return original(connection, address)

        return connect
