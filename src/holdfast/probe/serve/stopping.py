"""Wait for a signal that ends a server."""

from __future__ import annotations

import math
import queue
import signal
import time

_LOOK_SECONDS = 0.5  # a signal that another thread received does not wake the main thread, whose handlers run then


class StopSignal:
    """Set by any of the given signals.

    Not a `threading.Event`: its `set` waits for ever in a handler that interrupts its own `wait` at the wrong moment.
    """

    def __init__(self, *signals: signal.Signals) -> None:
        self._received: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in signals:
            signal.signal(number, lambda received, _frame: self._received.put(received))

    def wait(self, seconds: float = math.inf) -> bool:
        """Wait for it; False after so many seconds."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                self._received.get(timeout=min(left, _LOOK_SECONDS))
            except queue.Empty:
                continue
            return True
        return False
