"""What a server lets one client do: how many connections, how fast, how large, how long."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Everything that bounds a server. Seconds and bytes."""

    connections: int = 64
    connections_of_one: int = 32
    requests_a_second: float = 50.0
    requests_at_once: int = 200
    header_bytes: int = 16 << 10
    body_bytes: int = 1 << 20
    table_bytes: int = 1 << 30
    request_seconds: float = 10.0
    answer_seconds: float = 300.0
    sql_seconds: float = 60.0
    sql_rows: int = 200_000
    sql_at_once: int = 2
    wrong_token_seconds: float = 0.5
    wrong_tokens_a_minute: int = 10
    ask_seconds: float = 240.0


class Connections:
    """Counts the open connections, all together and by address."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._lock = limits, threading.Lock()
        self._by_address: Counter[str] = Counter()

    def enter(self, address: str) -> bool:
        """Whether one more may come in."""
        with self._lock:
            full = self._by_address.total() >= self._limits.connections
            if full or self._by_address[address] >= self._limits.connections_of_one:
                return False
            self._by_address[address] += 1
            return True

    def leave(self, address: str) -> None:
        """One has gone."""
        with self._lock:
            self._by_address[address] -= 1
            if self._by_address[address] <= 0:
                del self._by_address[address]


class Rate:
    """How many requests a second each address may make: a bucket that fills up again."""

    def __init__(self, a_second: float, at_once: int) -> None:
        self._a_second, self._at_once, self._lock = a_second, at_once, threading.Lock()
        self._buckets: dict[str, tuple[float, float]] = {}

    def allows(self, address: str, now: float | None = None) -> bool:
        """Take one from the bucket; False if it is empty."""
        now = time.monotonic() if now is None else now
        with self._lock:
            if len(self._buckets) > 4096:  # those that are full again say nothing
                self._buckets = {
                    key: bucket for key, bucket in self._buckets.items() if self._filled(*bucket, now) < self._at_once
                }
            left = self._filled(*self._buckets.get(address, (float(self._at_once), now)), now)
            self._buckets[address] = (max(0.0, left - 1.0), now)
            return left >= 1.0

    def _filled(self, left: float, since: float, now: float) -> float:
        return min(float(self._at_once), left + (now - since) * self._a_second)
