"""Tables that a client has opened and not yet read: all that it reads of one is of the same moment, and it is opened once."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict

from holdfast.probe.table_files import TableFiles

_AT_MOST = 8
_SECONDS = 60.0


class Opened:
    """The tables that were opened last, each under a mark. The oldest goes when there are too many: it is opened anew then."""

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
