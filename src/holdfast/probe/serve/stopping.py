"""Wait for a signal that ends a server."""

from __future__ import annotations

import queue
import signal


class StopSignal:
    """Set by any of the given signals.

    Not a `threading.Event`: its `set` waits for ever in a handler that interrupts its own `wait` at the wrong moment.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self._received: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in numbers:
            signal.signal(number, lambda received, _frame: self._received.put(received))

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for it; False after so many seconds."""
        try:
            self._received.get(timeout=seconds)
        except queue.Empty:
            return False
        return True
