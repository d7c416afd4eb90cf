"""What a server has for all its clients: the runs, the tokens, the limits, and turns at what only a few may do at once."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

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


class Server:
    """Serves the runs that `runs` answers with. `say` hears of what a person should know."""

    def __init__(
        self,
        address: tuple[str, int],
        runs: Callable[[], list[RunFolder]],
        tokens: Sequence[Token],
        *,
        read_only: bool = False,
        limits: Limits | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.server_address, self.runs, self.tokens, self.read_only, self.say = address, runs, list(tokens), read_only, say
        self.limits = limits or Limits()
        self.rate = Rate(self.limits.requests_a_second, self.limits.requests_at_once)
        self.wrong_tokens = Rate(self.limits.wrong_tokens_a_minute / 60, self.limits.wrong_tokens_a_minute)
        self.connections = Connections(self.limits)
        self.sql_turn = threading.BoundedSemaphore(self.limits.sql_at_once)
        self.stacks_turn = threading.Lock()
        self.opened = Opened()
        self.mark = secrets.token_hex(8)
        self._strangers = Rate(1 / 60, 1)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self.server_address[1]

    def say_of_stranger(self, address: str) -> None:
        """Say that somebody came without a known token; of one address once a minute."""
        if self._strangers.allows(address):
            self.say(f"a request from {address} without a known token was refused")
